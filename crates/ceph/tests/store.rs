//! The suite of `object_store` that all of its own stores pass, over pools in memory, and what it does not ask.
//! With `ONEHOP_CEPH_CONF`, `make test-ceph` runs it over a real cluster as well.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, integration};
use onehop_ceph::{Authority, Connections, RadosStore};
use onehop_io::rados::fs::SystemClock;
use onehop_io::rados::{Cluster, ClusterOptions, Code, FileSystem, FsOptions, SimClient, SimCluster, SimFault};
use onehop_io::{Hop, Ledger};

/// Small chunks: every object of some size has several.
const OPTIONS: fn() -> FsOptions = || FsOptions { chunk_bytes: 64 << 10, ..FsOptions::default() };

fn simulated() -> (SimClient, FileSystem) {
    let client = SimCluster::default().client();
    let (names, bytes) = (client.replicated("names"), client.erasure_coded("bytes"));
    let fs = FileSystem::create_on(names, bytes, "bytes", Arc::new(SystemClock), OPTIONS()).unwrap();
    (client, fs)
}

async fn suite(store: &RadosStore) {
    integration::put_get_delete_list(store).await;
    integration::get_opts(store).await;
    integration::put_opts(store, true).await;
    // Those before leave their objects, those from here on want none.
    let left: Vec<_> = store.list(None).map_ok(|object| object.location).try_collect().await.unwrap();
    for location in left {
        store.delete(&location).await.unwrap();
    }
    integration::stream_get(store).await;
    integration::list_uses_directories_correctly(store).await;
    integration::list_with_delimiter(store).await;
    integration::rename_and_copy(store).await;
    integration::copy_if_not_exists(store).await;
    integration::copy_rename_nonexistent_object(store).await;
    integration::multipart_race_condition(store, true).await;
    integration::multipart_out_of_order(store).await;
    integration::list_with_offset_exclusivity(store).await;
    integration::get_nonexistent_object(store, None).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_of_the_library_passes() {
    let (_, fs) = simulated();
    suite(&RadosStore::new(fs.clone(), Arc::default())).await;
    let findings = fs.check(onehop_io::rados::fs::Depth::Objects).unwrap();
    assert!(findings.damage.is_empty() && findings.unknown.is_empty(), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Ceph cluster: make test-ceph"]
async fn the_suite_of_the_library_passes_on_a_cluster() {
    let conf = std::env::var_os("ONEHOP_CEPH_CONF").expect("ONEHOP_CEPH_CONF: a ceph.conf");
    let options = ClusterOptions { conf: Some(conf.into()), ..ClusterOptions::default() };
    let namespace = format!("store-{}", std::process::id());
    let cluster = Cluster::connect(&options).unwrap();
    FileSystem::create(&cluster, "meta", "data", &namespace, FsOptions::default()).unwrap();
    let authority = Authority { pool: "meta".into(), namespace };
    let connections = Connections::default();
    let fs = tokio::task::spawn_blocking(move || connections.file_system(&options, &authority)).await.unwrap().unwrap();
    suite(&RadosStore::new(fs, Arc::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_moved_is_counted_and_a_rename_moves_nothing() {
    let (_, fs) = simulated();
    let ledger = Arc::new(Ledger::default());
    let store = RadosStore::new(fs, Arc::clone(&ledger));
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n / 7) as u8).collect();
    let (from, to) = (Path::from("a/b/from"), Path::from("c/to"));
    store.put(&from, bytes.clone().into()).await.unwrap();
    assert_eq!(ledger.snapshot().hop(Hop::HostToStorage), 200_000);

    let before = ledger.snapshot();
    let tag = store.head(&from).await.unwrap().e_tag;
    store.rename(&from, &to).await.unwrap();
    assert_eq!(store.head(&to).await.unwrap().e_tag, tag);
    assert_eq!(ledger.snapshot().since(&before).moved_bytes(), 0);

    let read = store.get_range(&to, 70_000..70_010).await.unwrap();
    assert_eq!(read, bytes[70_000..70_010]);
    let moved = ledger.snapshot().since(&before);
    // One block with its checksum, and what was wanted of it.
    assert_eq!((moved.hop(Hop::StorageToHost), moved.needed_bytes), (65_536, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_not_completed_is_nowhere() {
    let (_, fs) = simulated();
    let store = RadosStore::new(fs, Arc::default());
    let path = Path::from("x/upload");
    for is_aborted in [false, true] {
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part(PutPayload::from(vec![1; 300_000])).await.unwrap();
        if is_aborted {
            upload.abort().await.unwrap();
            assert!(upload.put_part(PutPayload::from("more")).await.is_err());
            assert!(upload.complete().await.is_err());
        }
    }
    assert!(store.list(None).next().await.is_none());
}

/// Whatever operation is refused or loses its answer: an object is there as it was put, or as it was before.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_fails_leaves_what_was_there() {
    let new: Vec<u8> = (0..150_000u32).map(|n| (n / 3) as u8).collect();
    for fault in [SimFault::Refuse(Code::NO_SPACE), SimFault::LoseReply, SimFault::LoseRequest] {
        for at in 0..40 {
            let (client, fs) = simulated();
            let store = RadosStore::new(fs, Arc::default());
            let path = Path::from("d/x");
            store.put(&path, "old".into()).await.unwrap();
            client.fail_at(at, fault);
            let put = store.put(&path, new.clone().into()).await;
            // One more fault that the reading itself might run into.
            client.fail_at(u64::MAX / 2, fault);
            let found = store.get(&path).await.unwrap().bytes().await.unwrap();
            assert!(found == new || (found == "old" && put.is_err()), "{fault:?} at {at}: {put:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_those_that_the_library_has_names_for() {
    use object_store::Error;
    let (client, fs) = simulated();
    let store = RadosStore::new(fs, Arc::default());
    store.put(&Path::from("a/b"), "x".into()).await.unwrap();
    let put = store.put(&Path::from("a"), "x".into()).await.unwrap_err();
    assert!(put.to_string().contains("it is a directory"), "{put}");
    let put = store.put(&Path::from("a/b/c"), "x".into()).await.unwrap_err();
    assert!(put.to_string().contains("a part of the path is a file"), "{put}");
    assert!(matches!(store.get(&Path::from("a/b/c")).await, Err(Error::NotFound { .. })));
    let tag = Some("0".repeat(32));
    let update = PutMode::Update(object_store::UpdateVersion { e_tag: tag, version: None });
    let update = store.put_opts(&Path::from("a/b"), "y".into(), update.into()).await;
    assert!(matches!(update, Err(Error::Precondition { .. })), "{update:?}");
    let get = store.get_ranges(&Path::from("a/b"), &[0..1, 0..7]).await.unwrap_err();
    assert!(get.to_string().contains("a/b has 1 bytes"), "{get}");
    let get = GetOptions::new().with_if_none_match(store.head(&Path::from("a/b")).await.unwrap().e_tag);
    assert!(matches!(store.get_opts(&Path::from("a/b"), get).await, Err(Error::NotModified { .. })));

    client.fail_at(0, SimFault::Refuse(Code::TIMED_OUT));
    let get = store.get(&Path::from("a/b")).await.unwrap_err();
    assert!(get.to_string().contains("no answer within the time"), "{get}");
    // A name that no path of an object can have is said, and hides nothing silently.
    let (_, fs) = simulated();
    fs.create_directory("d").unwrap();
    fs.create_file("d/a\nb", onehop_io::rados::fs::Replace::Never, Arc::default()).unwrap().close().unwrap();
    let listed: Result<Vec<_>, _> = RadosStore::new(fs, Arc::default()).list(None).try_collect().await;
    assert!(matches!(listed, Err(Error::InvalidPath { .. })), "{listed:?}");
}
