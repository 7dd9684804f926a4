//! Disks that are full, fail or rot.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::fs;
use std::path::Path;

use common::client::Client;
use common::load::{Load, check_all_there};
use common::mount::Mount;
use common::{Folder, Launch, Server, eventually, files, skip};

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
const MIB: usize = 1 << 20;
/// How often a refused write is tried again.
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// Changed pages from which on the index is written to its file.
const CHECKPOINT_BYTES: usize = 128 << 20;
/// Bytes of the fixed pages at an index file's start.
const FIXED_BYTES: u64 = 8 * 4096;

/// Puts values of 1 MiB until one is refused for lack of space; gives how many were taken.
fn put_until_refused(client: &Client, at_most: usize) -> usize {
    for number in 0..at_most {
        if let Err(error) = client.put(format!("fill/{number:04}"), vec![b'f'; MIB]) {
            assert_eq!(error.text(), NO_SPACE, "{error:?}");
            return number;
        }
    }
    panic!("{at_most} MiB went to a full disk");
}

/// What goes on while the disk is full, also after a restart, and that writes resume by themselves once there is room.
fn check_full_disk(launch: &dyn Fn() -> Launch, mut server: Server, filler: &Path, taken: usize) {
    check_refuses_growth(&mut server);
    server.kill();
    let mut server = launch().start();
    check_refuses_growth(&mut server);
    let client = server.client();
    assert!(taken > 1, "what was reserved is used first");
    let (before, revision) = client.keys().unwrap();
    assert_eq!(client.delete("fill/0000").unwrap(), 1);
    assert_eq!(client.get("fill/0000").unwrap(), None);
    client.compact(revision).unwrap();
    assert_eq!(client.alarms().unwrap(), [], "a full disk raises no alarm: nothing needs to be disarmed");
    assert!(server.is_alive(), "{}", server.output());

    fs::remove_file(filler).unwrap();
    let started = std::time::Instant::now();
    let resumed = loop {
        match client.put("small", "v") {
            Ok(revision) => break revision,
            Err(error) => assert_eq!(error.text(), NO_SPACE, "{error:?}: {}", server.output()),
        }
        assert!(started.elapsed() < 2 * common::DEADLINE, "writes do not resume: {}", server.output());
        std::thread::sleep(RETRY_INTERVAL);
    };
    println!("writes resumed after {:?}", started.elapsed());
    assert_eq!(resumed, revision + 2, "the refused writes left no trace");
    assert_eq!(client.keys().unwrap().0.len(), before.len());
    client.put("large", vec![b'l'; MIB]).unwrap();
    server.kill();
    let server = launch().start();
    assert_eq!(server.client().get("small").unwrap().unwrap().value, "v");
    server.stop();
}

fn check_refuses_growth(server: &mut Server) {
    let client = server.client();
    assert_eq!(client.get("fill/0000").unwrap().unwrap().value.len(), MIB);
    // A server that has just started finds out with its first attempt to grow; what it takes until then is durable.
    put_until_refused(&client, 100);
    assert!(server.is_alive(), "{}", server.output());
}

#[test]
fn a_full_disk_refuses_growth_and_writes_resume_when_there_is_space() {
    let mount = match Mount::new(96 << 20) {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    let launch = || Launch::new(&mount.path("data"));
    let server = launch().start();
    let filler = mount.fill();
    let taken = put_until_refused(&server.client(), 90);
    check_full_disk(&launch, server, &filler, taken);
}

#[test]
fn a_full_disk_below_the_log_alone_refuses_growth_and_writes_resume_when_there_is_space() {
    let mount = match Mount::new(96 << 20) {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    let launch = || {
        let wal = format!("--wal-dir={}", mount.path("wal").display());
        Launch::new(&mount.beside("data")).arg(wal)
    };
    let server = launch().start();
    let filler = mount.fill();
    let taken = put_until_refused(&server.client(), 90);
    check_full_disk(&launch, server, &filler, taken);
}

#[test]
fn a_full_disk_below_the_index_alone_refuses_growth_and_writes_resume_when_there_is_space() {
    let mount = match Mount::new(512 << 20) {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    let launch = || {
        let wal = format!("--wal-dir={}", mount.beside("wal").display());
        Launch::new(&mount.path("data")).arg(wal)
    };
    let server = launch().start();
    let filler = mount.fill();
    let taken = put_until_refused(&server.client(), 400);
    check_full_disk(&launch, server, &filler, taken);
}

#[test]
fn a_full_disk_at_start_is_an_error_that_names_the_file_or_serves_reads() {
    let mount = match Mount::new(32 << 20) {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    // Too small for what is reserved at start: nothing can be acknowledged, and it says so.
    let mut server = Launch::new(&mount.path("data")).spawn();
    server.wait_for("No space left on device");
    assert!(server.output().contains(common::mount::text(&mount.path("data"))), "{}", server.output());
}

#[test]
fn a_disk_that_fails_under_load_stops_the_process_and_no_acknowledged_write_is_lost() {
    let mount = match Mount::new(256 << 20) {
        Ok(mount) => mount,
        Err(reason) => return skip(&reason),
    };
    let data = mount.path("data");
    let mut all = common::load::Acknowledged::new();
    for round in 0..3 {
        let mut server = Launch::new(&data).start();
        check_all_there(&server, &all);
        let load = Load::start(&server, &format!("round-{round}"), 8, 1000);
        load.wait_for(200);
        mount.shut_down();
        let status = server.wait();
        let said = server.said();
        assert_eq!(status.code(), Some(1), "it stops by itself: {status}: {said}");
        let message = said.lines().rfind(|line| line.starts_with("garboard: ")).unwrap_or_default();
        assert!(message.contains(common::mount::text(&data)), "the message names the file: {said}");
        assert!(message.contains("start again"), "the message says what to do: {said}");
        all.extend(load.finish().0);
        mount.remount();
    }
    check_all_there(&Launch::new(&data).start(), &all);
}

/// A data directory whose index holds the data, not only the log.
fn with_index(folder: &Folder) {
    let mut server = Launch::new(&folder.data()).start();
    let client = server.client();
    for number in 0..CHECKPOINT_BYTES / MIB + 8 {
        client.put(format!("key/{number:04}"), vec![b'v'; MIB]).unwrap();
    }
    let index = folder.data().join("keyspace-0/index");
    // The newest meta page is written last, and says at 96 that the checkpoint holds what came before.
    eventually("the index is written", || {
        let revision = (0..4).map(|slot| files::bytes_at(&index, slot * 4096 + 72, 8));
        revision.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).max().filter(|revision| *revision > 64)
    });
    server.kill();
}

/// Reads everything, until the server stops or all is read; values that come back are the right ones.
fn read_all(client: &Client) -> bool {
    (0..CHECKPOINT_BYTES / MIB + 8).all(|number| match client.get(format!("key/{number:04}")) {
        Ok(found) => {
            assert!(found.is_some_and(|kv| kv.value == vec![b'v'; MIB]), "key {number} reads back as it was written");
            true
        }
        Err(_) => false,
    })
}

#[test]
fn a_rotten_index_is_never_served() {
    let folder = Folder::new();
    with_index(&folder);
    let index = folder.data().join("keyspace-0/index");
    let len = fs::metadata(&index).unwrap().len();

    // One page that is in use somewhere in the middle.
    let in_use = (FIXED_BYTES..len).step_by(4096).filter(|at| files::bytes_at(&index, *at, 4096) != [0; 4096]);
    let pages: Vec<u64> = in_use.collect();
    let mut noticed = 0;
    for place in [pages.len() / 3, pages.len() / 2, pages.len() - 2] {
        let at = pages[place];
        files::flip(&index, at + 2000);
        let mut server = Launch::new(&folder.data()).spawn();
        let ready = eventually("it serves or ends", || match server.is_alive() {
            true => server.output().contains("ready to serve").then_some(true),
            false => Some(false),
        });
        if !ready || !read_all(&server.client()) {
            let status = server.wait();
            let said = server.said();
            assert_eq!(status.code(), Some(1), "{status}: {said}");
            assert!(said.contains(&format!("offset {at}")), "it names offset {at}: {said}");
            assert!(said.contains("index"), "it names the file: {said}");
            noticed += 1;
        }
        drop(server);
        files::flip(&index, at + 2000);
    }
    assert!(noticed > 0, "none of the pages was one that is read");

    // All meta pages.
    let good = files::bytes_at(&index, 0, 4 * 4096);
    for slot in 0..4 {
        files::overwrite(&index, slot * 4096, &[0xa5; 4096]);
    }
    let said = Launch::new(&folder.data()).refused();
    assert!(said.contains(common::mount::text(&index)) && said.contains("meta page"), "{said}");
    files::overwrite(&index, 0, &good);
    assert!(read_all(&Launch::new(&folder.data()).start().client()));

    // A file cut short.
    let whole = folder.path().join("whole");
    fs::copy(&index, &whole).unwrap();
    fs::OpenOptions::new().write(true).open(&index).unwrap().set_len(len / 2).unwrap();
    let said = Launch::new(&folder.data()).refused();
    assert!(said.contains(common::mount::text(&index)), "{said}");
}

#[test]
fn a_page_that_can_no_longer_be_read_ends_the_process_with_page_and_offset() {
    let folder = Folder::new();
    with_index(&folder);
    // A checkpoint under way would write to the file that is cut below, and lengthen it again; after a stop that was asked
    // for nothing is left to write.
    Launch::new(&folder.data()).start().stop();
    let mut server = Launch::new(&folder.data()).start();
    let client = server.client();
    assert!(read_all(&client), "every page has been read and checked once");
    // As with a device that fails later: pages that were there can't be read any more.
    let index = folder.data().join("keyspace-0/index");
    fs::OpenOptions::new().write(true).open(&index).unwrap().set_len(FIXED_BYTES).unwrap();
    assert!(!read_all(&client), "pages that are gone are not served");
    let status = server.wait();
    let said = server.said();
    assert_eq!(status.code(), Some(1), "it stops by itself: {status}: {said}");
    let message = said.lines().rfind(|line| line.starts_with("garboard: ")).unwrap_or_default();
    for part in [common::mount::text(&index), "page ", "offset ", "can't be read"] {
        assert!(message.contains(part), "{part}: {said}");
    }
}
