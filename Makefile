# `make` lists the targets. Each does its own set-up; Rust, a C compiler and Python 3.10 or newer must be there.
# Set CARGO_TARGET_DIR to build elsewhere than ./target.

TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release/onehop
DEBUG := $(TARGET)/debug/onehop
PYTHON := bench/peers/.venv/bin/python
WHEELS := $(TARGET)/wheels
SF ?= 1
RUNS ?= 5

.DEFAULT_GOAL := help
.PHONY: help demo build test test-rust test-crash test-crash-images simulate test-sanitize test-ceph test-nvrtc test-gpu \
    test-differential test-plans test-mutations test-files test-tbl test-answers test-learn test-limits test-rounds test-server test-suites test-python fuzz wheel test-wheel test-jvm test-jvm-ceph test-spark jar lint bench clean-data

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

demo: build ## Build, generate SSB SF 1, run its 13 queries, show answers and figures
	@mkdir -p data
	@test -f data/ssb-sf1.onehop/store -o -f data/ssb-sf1.onehop/catalog || $(RELEASE) gen ssb --sf 1 --out data/ssb-sf1.onehop
	@for q in crates/lab/src/queries/ssb/*.sql; do \
	    echo; echo "-- $$(basename $$q .sql)"; cat $$q; \
	    $(RELEASE) data/ssb-sf1.onehop --readonly --format box -f $$q | head -n 14; \
	done
	@echo; $(RELEASE) bench ssb --sf 1 --db data/ssb-sf1.onehop --runs $(RUNS)
	@echo; echo "Now try: $(RELEASE) data/ssb-sf1.onehop"

build: ## Build the release binary
	cargo build --release --locked -p onehop

# Two at a time: each of them waits, for others or for the last of its tests, more than it computes. What one says is shown when it
# has ended. Long ones come first; of kernels that the first compiles, the last needs the same.
LANES := test-rust test-nvrtc test-crash-images test-answers test-tbl test-differential test-plans test-files test-learn test-limits \
    test-rounds test-server test-suites test-python test-jvm test-sanitize
test: $(DEBUG) ## Everything that CI tests (JOBS=2: as many lanes beside each other)
	@$(MAKE) --no-print-directory BUILT=1 --jobs=$(or $(JOBS),2) $(if $(filter 1,$(JOBS)),,--output-sync=target) $(LANES)

test-rust: $(DEBUG) ## Unit, property, corruption, crash and golden SQL tests
	cargo test --locked --workspace

test-crash: ## Long: a process killed while it commits, 500 times; readers beside 10,000 transactions; all crash tests
	cargo test --locked -p onehop-store
	ONEHOP_KILL_ROUNDS=$(or $(ROUNDS),500) ONEHOP_TRANSACTIONS=$(or $(TRANSACTIONS),10000) \
	    cargo test --locked --workspace --test kill --test crash --test transactions -- --nocapture

test-crash-images: ## A million different images of what a crash can leave of a store, each recovered from and judged
	@tests/crashes/run.sh

# Seeds are run by all cores. A failure prints its seed, the crash, and what was done until then.
simulate: ## Long: the whole database over a disk that fails, crashed after every operation (SEEDS=1000 SEED=1)
	ONEHOP_SIMULATE_SEEDS=$(or $(SEEDS),1000) ONEHOP_SIMULATE_SEED=$(or $(SEED),1) \
	    cargo test --locked --workspace --test simulator $(if $(PROFILE),--profile $(PROFILE),) -- --ignored --nocapture simulate_seeds

# The two crates that hand memory to the system and to devices; the compiler's sanitizer needs no other standard library.
test-sanitize: ## Tests of crates/io and crates/cuda under AddressSanitizer, leaks included
	@tests/sanitize/run.sh

# Installs Ceph's Debian packages if they are missing, as root.
test-ceph: ## The file layer on a Ceph cluster that is made for it (OSDS=3: with an erasure-coded pool)
	@tests/ceph/run.sh

# The programs may be given, so that the machine with the GPU needs no Rust:
# make test-gpu ONEHOP=... DEVICE_CHECKS=... FUSED_CHECKS=...
test-gpu: ## On a machine with a GPU: every way between storage and it, byte for byte, and generated kernels
ifeq ($(ONEHOP),)
	cargo build --release --locked -p onehop
	cargo build --release --locked -p onehop-cuda --example device_checks --example fused_checks
endif
	ONEHOP=$(or $(ONEHOP),$(RELEASE)) DEVICE_CHECKS=$(or $(DEVICE_CHECKS),$(TARGET)/release/examples/device_checks) \
	    FUSED_CHECKS=$(or $(FUSED_CHECKS),$(TARGET)/release/examples/fused_checks) tests/gpu/run.sh

test-nvrtc: $(PYTHON) ## Every kernel, compiled by NVIDIA's compiler for sm_90 and sm_80; needs no GPU
	ONEHOP_NVRTC=$$($(PYTHON) -c 'import nvidia; from pathlib import Path; \
	    print(next(lib for path in nvidia.__path__ for lib in Path(path).glob("*/lib/libnvrtc.so.*")))') \
	    cargo test --locked --workspace --test nvrtc -- --ignored --nocapture

# The binary is built along with the tests: another selection of packages would mean other features, and a second build
# of every dependency. Where it has just been built (BUILT), nothing waits for another look.
$(DEBUG): $(if $(BUILT),,FORCE)
	$(if $(BUILT),,cargo test --locked --workspace --no-run)
FORCE:

# Looks whether the environment is whole, each time: a moment if it is.
$(PYTHON): FORCE
	@bench/peers/setup.sh

test-answers: $(DEBUG) ## All SSB and TPC-H queries at SF 0.1 and 1 against DuckDB's stored answers
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	for suite in ssb tpch; do for sf in 0.1 1; do \
	    $(DEBUG) bench $$suite --sf $$sf --db "$$scratch/$$suite-$$sf" --runs 0 || exit 1; \
	    $(DEBUG) check "$$scratch/$$suite-$$sf" || exit 1; \
	done; done && echo "answers: 70 passed, 0 failed"

test-tbl: $(DEBUG) $(PYTHON) ## SSB loaded from the reference generator's file format
	$(PYTHON) tests/tbl/run.py --sf 1 --onehop $(DEBUG)

test-differential: $(DEBUG) $(PYTHON) ## Random queries against DuckDB, SQLite and PostgreSQL's answers, and the canaries that must fail
	$(PYTHON) tests/differential/run.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/run.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/subqueries.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/subqueries.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/conversions.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/conversions.py --onehop $(DEBUG) --canary > /dev/null
	$(PYTHON) tests/differential/moments.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/moments.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/expressions.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/expressions.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/clauses.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/clauses.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/names.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/names.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/changes.py --onehop $(DEBUG)
	! $(PYTHON) tests/differential/changes.py --onehop $(DEBUG) --canary --queries 20 > /dev/null
	$(PYTHON) tests/differential/mutations.py --onehop $(DEBUG) quantified order_names lossy_casts guarded_cases

# The other suites of plans run with test-rust.
test-plans: $(DEBUG) ## Plans of the TPC-DS queries against their snapshots (PLANS=write: write those of all suites)
	@bench/peers/setup.sh tests/plans
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && tests/plans/.venv/bin/python tests/plans/tpcds.py "$$scratch" && \
	ONEHOP_PLANS=$(PLANS) ONEHOP_TPCDS="$$scratch" cargo test --locked --workspace --test plans -- \
	    $(if $(PLANS),--include-ignored,--ignored) && echo "plans: 99 passed, 0 failed"

test-mutations: $(DEBUG) $(PYTHON) ## Long: every old fault, put back, is found by random queries (NAMES="order_names ..": some)
	$(PYTHON) tests/differential/mutations.py --onehop $(DEBUG) $(NAMES)

test-files: $(DEBUG) $(PYTHON) ## Generated dialects of CSV beside DuckDB (DIALECTS=500: all of them)
	$(PYTHON) tests/files/dialects.py --onehop $(DEBUG) --count $(or $(DIALECTS),100)

# Long. Inputs that fail are kept in fuzz/failed; `make test` runs each target for a moment. FUZZ_INPUT=FILE is one input alone.
fuzz: $(DEBUG) ## Fuzz what reads bytes: files, SQL, protocol, segments, stores (FUZZ_SECONDS=1800 FUZZ_TARGET=sql,wire FUZZ_SEED=0)
	ONEHOP_FUZZ_SECONDS=$(if $(FUZZ_INPUTS),,$(or $(FUZZ_SECONDS),1800)) ONEHOP_FUZZ_TARGET=$(FUZZ_TARGET) \
	    ONEHOP_FUZZ_SEED=$(or $(FUZZ_SEED),0) ONEHOP_FUZZ_INPUTS=$(FUZZ_INPUTS) ONEHOP_FUZZ_INPUT=$(FUZZ_INPUT) \
	    cargo test --locked --workspace --test fuzz -- --nocapture

test-functions: $(DEBUG) ## Every function over every type: planned and computed types, constants and columns (FUNCTIONS=round: some)
	ONEHOP_FUNCTIONS=$(FUNCTIONS) cargo test --locked --workspace --lib -- --nocapture functions_keep_their_types

test-learn: $(DEBUG) ## Models of random data against statsmodels and scikit-learn, and the canary that must fail
	@bench/peers/setup.sh tests/learn
	tests/learn/.venv/bin/python tests/learn/run.py --onehop $(DEBUG)
	! tests/learn/.venv/bin/python tests/learn/run.py --onehop $(DEBUG) --canary > /dev/null

test-limits: $(DEBUG) $(PYTHON) ## Statements that take memory and time, held to memory_limit and statement_timeout (STATEMENTS=2000)
	$(PYTHON) tests/limits/memory.py --onehop $(DEBUG) --statements $(or $(STATEMENTS),100)
	! $(PYTHON) tests/limits/memory.py --onehop $(DEBUG) --statements 200 --canary > /dev/null 2>&1
	$(PYTHON) tests/limits/time_limits.py --onehop $(DEBUG) --statements $(or $(STATEMENTS),100)

# Short here; ROUNDS=1000 takes half an hour, and SECONDS=600 has a backup every 10 s beside 1,000 commits a second.
test-rounds: $(DEBUG) $(PYTHON) ## Kills, full disks, replaced files and backups under load: nothing acknowledged is lost (ROUNDS=1000 SECONDS=600)
	$(PYTHON) tests/reliability/rounds.py --onehop $(DEBUG) --rounds $(or $(ROUNDS),9)
	! $(PYTHON) tests/reliability/rounds.py --onehop $(DEBUG) --rounds 3 --canary > /dev/null 2>&1
	$(PYTHON) tests/reliability/backups.py --onehop $(DEBUG) $(if $(SECONDS),--seconds $(SECONDS) --every 10 --rate 1000)
	! $(PYTHON) tests/reliability/backups.py --onehop $(DEBUG) --seconds 2 --canary > /dev/null 2>&1

# Installs Debian's postgresql-client if it is missing, as root.
test-server: $(DEBUG) ## psql, psycopg and SQLAlchemy against the server, and recorded connections of other clients
	tests/server/run.sh $(DEBUG)

# Installs libpq-dev, a JDK and Maven if they are missing, as root. Suites are downloaded once.
test-suites: $(DEBUG) ## Test suites of PostgreSQL's drivers against the server, compared with lists of what passes
	tests/server/suites/run.sh $(DEBUG)

# The library that Python loads is built along with the tests as well: see python/Cargo.toml.
test-python: $(DEBUG) ## The Python package, over the debug build, and a client of it under mypy --strict
	python/tests/run.sh $(TARGET)/debug/deps/lib_onehop.so

wheel: ## A wheel of the Python package, for Python 3.10 and later; builds with optimisations
	python/wheel.sh build $(WHEELS)

test-wheel: ## The guide's tutorial over the wheel that `make wheel` made, in an empty environment
	python/wheel.sh test $(WHEELS)

# Installs a JDK and Maven if they are missing, as root.
test-jvm: $(DEBUG) ## rados:// for Hadoop: Hadoop's own contract suites and ours, over pools in memory
	@jvm/build.sh test $(TARGET)/debug/deps/libonehop_jni.so

test-jvm-ceph: $(DEBUG) ## The same on a Ceph cluster that is made for it
	@tests/ceph/jvm.sh $(TARGET)/debug/deps/libonehop_jni.so

# Downloads PySpark if it is missing: half a gigabyte. The jar has the debug build's library, and is not the one of `make jar`.
test-spark: $(DEBUG) ## Spark on rados:// on Ceph clusters that are made for it: committers, failures, killed drivers, outages (PROGRAMS=...)
	BUILD=$(TARGET)/jvm-debug jvm/build.sh jar $(TARGET)/debug/deps/libonehop_jni.so
	tests/spark/run.sh $(TARGET)/jvm-debug/onehop-hadoop-0.1.0.jar $(DEBUG) $(PROGRAMS)

jar: ## rados:// for Hadoop and Spark, with the native library of this platform; builds with optimisations
	jvm/build.sh jar

lint: ## rustfmt, clippy, that the Python parses, and that the Java compiles without a warning
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	python3 -m compileall -q bench tests python -x '\.venv|\.build'
	jvm/build.sh check

bench: build $(PYTHON) ## SSB and TPC-H beside DuckDB, alternating, answers compared (SF=1 RUNS=5)
	$(PYTHON) bench/peers/compare.py ssb --sf $(SF) --runs $(RUNS) --onehop $(RELEASE)
	$(PYTHON) bench/peers/compare.py tpch --sf $(SF) --runs $(RUNS) --onehop $(RELEASE)

clean-data: ## Remove generated benchmark data
	rm -rf data
