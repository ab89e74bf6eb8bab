#!/usr/bin/env bash
# A Ceph cluster for tests, on this host alone: one monitor and some OSDs as plain processes.
#
#   cluster.sh up FOLDER       build it in FOLDER, or start again what is there; prints the path of its ceph.conf
#   cluster.sh stop FOLDER     end its processes; what is stored stays
#   cluster.sh wipe FOLDER     stop, and remove what `up` has made
#   cluster.sh status FOLDER   which processes run, and what the monitor says
#   cluster.sh kill FOLDER osd.0    end one process as a crash would
#   cluster.sh install         install what is missing (Debian and Ubuntu, as root)
#
# From the environment, when a cluster is built: OSDS=1, REPLICAS=1, OSD_GIB=10 (a sparse file each), and the pools
# META_POOL=meta, DATA_POOL=data, EC_POOL=none (erasure coded 2+1; wants OSDS=3), PGS=16 (of each pool).
#
# What must hold:
# - Nothing but 127.0.0.1 is listened to, on ports that were free when the cluster was built.
# - A process is signalled only if it is one of this folder's: its number is in FOLDER/run, and its command line names
#   FOLDER/ceph.conf. Numbers are used again, and a folder may be old.
# - Nothing waits for ever: each step has WAIT_S seconds, then the log's end is shown.
# - A build that was interrupted is thrown away by the next `up`; only one that has served a request counts.
set -euo pipefail

WAIT_S=${WAIT_S:-90}
packages=(ceph-mon ceph-osd ceph-common librados2)

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

usage() {
    sed -n '4,9s/^# *//p' "$0" >&2
    exit 2
}

install_packages() {
    command -v ceph-mon ceph-osd ceph monmaptool rados > /dev/null && return
    "$(dirname "$0")/../packages.sh" "${packages[@]}"
}

# The monitor and its tools answer within the time or fail.
ask() { timeout "$WAIT_S" ceph -c "$conf" --connect-timeout "$WAIT_S" "$@"; }

pid_of() { cat "$folder/run/$1.pid" 2> /dev/null || true; }

# Whether a number is a running process of this folder.
is_ours() {
    [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' '\n' < "/proc/$1/cmdline" 2> /dev/null | grep -qxF -- "$conf"
}

start() { # NAME COMMAND...
    local name=$1
    shift
    is_ours "$(pid_of "$name")" && return
    # In a session of its own: an interrupt at the terminal is the test's, not the cluster's.
    setsid "$@" -c "$conf" -f < /dev/null >> "$folder/log/$name.out" 2>&1 &
    echo $! > "$folder/run/$name.pid"
}

# Waits until a command succeeds; fails at once if a process has ended.
until_true() { # WHAT COMMAND...
    local what=$1 end=$((SECONDS + WAIT_S)) file name
    shift
    until "$@" > /dev/null 2>&1; do
        for file in "$folder"/run/*.pid; do
            name=$(basename "$file" .pid)
            is_ours "$(cat "$file")" || { tail -n 15 "$folder/log/$name".* >&2 || true; fail "$name has ended, waiting for $what"; }
        done
        [ "$SECONDS" -lt "$end" ] || { tail -n 15 "$folder"/log/*.out >&2 || true; fail "no $what after $WAIT_S s; logs are in $folder/log"; }
        sleep 0.1
    done
}

# A port that nobody listens to. Somebody else may take it before we do: then the monitor ends, and says why.
free_port() {
    local port
    for _ in $(seq 50); do
        port=$((20000 + RANDOM % 12000))
        (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null || { echo "$port"; return; }
    done
    fail "no free port found"
}

write_conf() { # FSID PORT
    cat > "$conf" << CONF
[global]
fsid = $1
mon_host = [v2:127.0.0.1:$2]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
# Beyond the ports that free_port picks from, and below those that the system gives to clients.
ms_bind_port_min = 32100
ms_bind_port_max = 32700
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_allow_insecure_global_id_reclaim = false
keyring = $folder/keyring
run_dir = $folder/run
crash_dir = $folder/crash
log_file = $folder/log/\$name.log
admin_socket = $folder/run/\$name.asok
# All copies on one host.
osd_crush_chooseleaf_type = 0
osd_pool_default_size = ${REPLICAS:-1}
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_max_pg_per_osd = 1000
# A disk that is used by others as well is no reason to stop.
mon_data_avail_warn = 2
mon_data_avail_crit = 1
[mon]
mon_data = $folder/mon
mon_cluster_log_file = $folder/log/cluster.log
[osd]
osd_data = $folder/osd.\$id
osd_objectstore = bluestore
bluestore_block_size = $((${OSD_GIB:-10} << 30))
bluestore_cache_autotune = false
bluestore_cache_size = 268435456
osd_class_load_list = *
osd_class_default_list = *
[client]
log_file =
admin_socket =
CONF
}

# Our monitor answers: whoever else may listen there has another fsid.
mon_serves() {
    local fsid
    fsid=$(sed -n 's/^fsid = //p' "$conf")
    [ "$(timeout 5 ceph -c "$conf" --connect-timeout 4 fsid)" = "$fsid" ]
}

osds_serve() { ask osd stat -f json | tr -d ' \n' | grep -q "\"num_up_osds\":$(cat "$folder/osds")[,}]"; }

# An object that is not there is said not to be: its placement group serves.
pool_serves() {
    local said
    said=$(timeout 5 rados -c "$conf" -p "$1" stat no-such-object 2>&1 || true)
    grep -q "No such file" <<< "$said"
}

build() {
    local fsid
    mkdir -p "$folder"/{run,log,crash,mon}
    fsid=$(cat /proc/sys/kernel/random/uuid)
    write_conf "$fsid" "$(free_port)"
    : > "$folder/keyring"
    echo "${OSDS:-1}" > "$folder/osds"
    monmaptool --create --fsid "$fsid" --addv a "$(sed -n 's/^mon_host = //p' "$conf")" --set-min-mon-release pacific \
        "$folder/monmap" > /dev/null
    ceph-mon -c "$conf" --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring" > "$folder/log/mon.a.out" 2>&1 ||
        fail "the monitor could not be made: $(tail -n 3 "$folder/log/mon.a.out")"
}

make_osd() { # NUMBER
    local uuid
    [ -e "$folder/osd.$1/made" ] && return
    mkdir -p "$folder/osd.$1"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ask osd new "$uuid" "$1" > /dev/null
    ceph-osd -c "$conf" -i "$1" --mkfs --osd-uuid "$uuid" >> "$folder/log/osd.$1.out" 2>&1 ||
        fail "osd.$1 could not be made: $(tail -n 3 "$folder/log/osd.$1.out")"
    touch "$folder/osd.$1/made"
}

make_pools() {
    local pool
    for pool in "${META_POOL:-meta}" "${DATA_POOL:-data}"; do
        ask osd pool create "$pool" "${PGS:-16}" "${PGS:-16}" > /dev/null 2>&1 || fail "pool $pool could not be made"
        echo "$pool" >> "$folder/pools"
    done
    if [ -n "${EC_POOL:-}" ]; then
        ask osd erasure-code-profile set two-and-one k=2 m=1 crush-failure-domain=osd > /dev/null 2>&1
        ask osd pool create "$EC_POOL" "${PGS:-16}" "${PGS:-16}" erasure two-and-one > /dev/null 2>&1 ||
            fail "pool $EC_POOL could not be made"
        echo "$EC_POOL" >> "$folder/pools"
    fi
}

up() {
    local new=0 i pool
    install_packages
    if [ ! -e "$folder/built" ]; then
        [ -e "$conf" ] && wipe
        mkdir -p "$folder"
        [ -z "$(ls -A "$folder")" ] || fail "$folder has something in it that is not a cluster's"
        new=1
        build
    fi
    start mon.a ceph-mon -i a
    until_true "monitor" mon_serves
    for ((i = 0; i < $(cat "$folder/osds"); i++)); do
        [ "$new" = 0 ] || make_osd "$i"
        start "osd.$i" ceph-osd -i "$i"
    done
    until_true "OSDs" osds_serve
    [ "$new" = 0 ] || make_pools
    while read -r pool; do until_true "answer of pool $pool" pool_serves "$pool"; done < "$folder/pools"
    touch "$folder/built"
    echo "$conf"
}

stop_one() { # NAME
    local pid
    pid=$(pid_of "$1")
    if is_ours "$pid"; then
        kill -TERM "$pid" 2> /dev/null || true
        for _ in $(seq 200); do
            is_ours "$pid" || break
            sleep 0.1
        done
        is_ours "$pid" && kill -KILL "$pid" 2> /dev/null || true
    fi
    rm -f "$folder/run/$1.pid"
}

stop() {
    local file
    # OSDs say goodbye to the monitor.
    for file in "$folder"/run/osd.*.pid "$folder"/run/mon.*.pid; do
        [ -e "$file" ] && stop_one "$(basename "$file" .pid)"
    done
    return 0
}

wipe() {
    [ -e "$conf" ] || return 0
    stop
    rm -rf -- "$folder"/{run,log,crash,mon,monmap,keyring,osds,pools,built} "$folder"/osd.*
    rm -f -- "$conf"
    rmdir --ignore-fail-on-non-empty "$folder"
}

kill_one() { # NAME
    local pid
    pid=$(pid_of "$1")
    is_ours "$pid" || fail "$1 does not run"
    kill -KILL "$pid"
    rm -f "$folder/run/$1.pid"
}

status() {
    local file pid
    for file in "$folder"/run/*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        if is_ours "$pid"; then
            echo "$(basename "$file" .pid): process $pid, $(awk '/^VmRSS/ {print int($2 / 1024)}' "/proc/$pid/status") MiB"
        else
            echo "$(basename "$file" .pid): not running"
        fi
    done
    is_ours "$(pid_of mon.a)" && ask -s
}

[ "${1:-}" = install ] && { install_packages; exit; }
[ $# -ge 2 ] || usage
folder=$(realpath -m "$2")
conf=$folder/ceph.conf
case $1 in
    up) up ;;
    stop) stop ;;
    wipe) wipe ;;
    status) status ;;
    kill) kill_one "${3:?which process, as osd.0}" ;;
    *) usage ;;
esac
