//! What acknowledged writes survive: kill −9, SIGTERM, a torn tail; and what is refused: damage to what was acknowledged.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::time::{Duration, Instant};

use common::files::{self, Batch};
use common::load::{Acknowledged, Load, check_all_there};
use common::{Folder, Launch};

#[test]
fn every_acknowledged_write_survives_kill_9_and_revisions_never_go_back() {
    let folder = Folder::new();
    let mut all = Acknowledged::new();
    let mut newest = 0;
    for round in 0..5 {
        let mut server = Launch::new(&folder.data()).start();
        let revision = check_all_there(&server, &all);
        assert!(revision >= newest, "round {round}: the store went back from {newest} to {revision}");
        newest = revision;
        let load = Load::start(&server, &format!("round-{round}"), 16, 100 + 3000 * (round % 2));
        load.wait_for(300);
        server.kill();
        let (acknowledged, _) = load.finish();
        let first = acknowledged.values().map(|(revision, _)| *revision).min().unwrap();
        assert!(first > newest, "round {round}: revision {first} was given twice");
        all.extend(acknowledged);
    }
    let revisions: std::collections::BTreeSet<i64> = all.values().map(|(revision, _)| *revision).collect();
    assert_eq!(revisions.len(), all.len(), "each write has a revision of its own");
    check_all_there(&Launch::new(&folder.data()).start(), &all);
}

#[test]
fn killed_while_it_starts_it_loses_nothing() {
    let folder = Folder::new();
    let mut server = Launch::new(&folder.data()).start();
    let load = Load::start(&server, "a", 8, 500);
    load.wait_for(200);
    server.kill();
    let (acknowledged, _) = load.finish();
    let started = Instant::now();
    let server = Launch::new(&folder.data()).start();
    let whole = started.elapsed();
    drop(server);
    for part in 1..6 {
        let mut server = Launch::new(&folder.data()).spawn();
        // The moment of the kill is what varies; whichever it is, the promise holds.
        std::thread::sleep(whole * part / 6);
        server.kill();
    }
    check_all_there(&Launch::new(&folder.data()).start(), &acknowledged);
}

#[test]
fn sigterm_under_load_stops_within_two_seconds_and_loses_nothing() {
    let folder = Folder::new();
    let mut server = Launch::new(&folder.data()).start();
    let load = Load::start(&server, "a", 16, 1000);
    load.wait_for(300);
    let asked = Instant::now();
    server.terminate();
    let status = server.wait();
    let took = asked.elapsed();
    assert!(status.success(), "{status}: {}", server.said());
    assert!(took < Duration::from_secs(2), "it took {took:?}");
    let (acknowledged, _) = load.finish();
    check_all_there(&Launch::new(&folder.data()).start(), &acknowledged);
}

#[test]
fn a_stopped_server_leaves_a_directory_that_opens_again_and_again() {
    let folder = Folder::new();
    for round in 0..4 {
        let server = Launch::new(&folder.data()).start();
        assert_eq!(server.client().revision().unwrap(), round + 1);
        server.client().put("key", "value").unwrap();
        server.stop();
    }
}

/// A directory with acknowledged writes whose server was killed under load.
fn killed_under_load(folder: &Folder, writers: usize) -> Acknowledged {
    let mut server = Launch::new(&folder.data()).start();
    let load = Load::start(&server, "a", writers, 2000);
    load.wait_for(300);
    server.kill();
    load.finish().0
}

/// The batches of a log that are in its chain, in order.
fn chain(folder: &Folder) -> Vec<Batch> {
    let mut batches = files::batches(&folder.data().join("wal"));
    batches.retain(|batch| batch.kind != 4);
    assert!(batches.len() > 10, "too few batches: {}", batches.len());
    batches
}

fn last(folder: &Folder) -> Batch {
    chain(folder).pop().unwrap()
}

#[test]
fn a_torn_write_behind_the_last_batch_is_cut_silently() {
    let folder = Folder::new();
    let acknowledged = killed_under_load(&folder, 8);
    let batch = last(&folder);
    // Sectors of a write that never completed: some bytes, and some that a batch elsewhere has too.
    let torn: Vec<u8> = (0..512_u32).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    files::overwrite(&batch.path, batch.end() + 512, &torn);
    let copy = files::bytes_at(&batch.path, batch.offset, 4096);
    files::overwrite(&batch.path, batch.end() + 4096, &copy);
    let server = Launch::new(&folder.data()).start();
    check_all_there(&server, &acknowledged);
    for word in ["corrupt", "damage", "\"error\""] {
        assert!(!server.output().contains(word), "{}", server.output());
    }
}

#[test]
fn a_torn_last_batch_costs_at_most_itself() {
    const WRITERS: usize = 8;
    let folder = Folder::new();
    let acknowledged = killed_under_load(&folder, WRITERS);
    let batches = files::batches(&folder.data().join("wal"));
    let batch = last(&folder);
    if batches.iter().any(|other| other.durable_sequence >= batch.sequence) {
        return common::skip("the last batch is known to have been durable: a pause let a seal be written");
    }
    // Its last sector never reached the disk.
    files::overwrite(&batch.path, batch.offset + (192 + u64::from(batch.body_len) - 1) / 512 * 512, &[0; 512]);
    let server = Launch::new(&folder.data()).start();
    let revision = server.client().revision().unwrap();
    let (kept, lost): (Acknowledged, Acknowledged) =
        acknowledged.into_iter().partition(|(_, (acknowledged, _))| *acknowledged <= revision);
    check_all_there(&server, &kept);
    // A batch holds at most one write of each writer.
    assert!(lost.len() <= WRITERS, "{} acknowledged writes are gone", lost.len());
}

#[test]
fn a_flipped_bit_in_an_acknowledged_batch_is_refused_with_file_offset_and_index() {
    let folder = Folder::new();
    let acknowledged = killed_under_load(&folder, 4);
    let chain = chain(&folder);
    let batch = chain.iter().skip(chain.len() / 2).find(|batch| batch.kind == 1).unwrap();
    for place in [20, 100, 192 + 10] {
        files::flip(&batch.path, batch.offset + place);
        let said = Launch::new(&folder.data()).refused();
        assert!(said.contains(batch.path.file_name().unwrap().to_str().unwrap()), "the file: {said}");
        assert!(said.contains(&format!("offset {}", batch.offset)), "offset {}: {said}", batch.offset);
        assert!(said.contains(&format!("index {}", batch.first_index)), "index {}: {said}", batch.first_index);
        files::flip(&batch.path, batch.offset + place);
    }
    // Refusing has changed nothing: with the bit as it was, everything is there.
    check_all_there(&Launch::new(&folder.data()).start(), &acknowledged);
}

#[test]
fn a_missing_segment_or_manifest_is_refused() {
    let folder = Folder::new();
    let wal = folder.data().join("wal");
    // An idle log is sealed in another segment; from then on the loss of the first one shows.
    let mut server = Launch::new(&folder.data()).start();
    common::eventually("a seal", || files::batches(&wal).into_iter().find(|batch| batch.kind == 4));
    server.kill();
    let acknowledged = killed_under_load(&folder, 4);
    let aside = folder.path().join("aside");
    for path in [last(&folder).path, wal.join("manifest")] {
        std::fs::rename(&path, &aside).unwrap();
        let said = Launch::new(&folder.data()).refused();
        assert!(said.contains("wal"), "{said}");
        std::fs::rename(&aside, &path).unwrap();
    }
    check_all_there(&Launch::new(&folder.data()).start(), &acknowledged);
}

#[test]
fn salvage_says_where_the_damage_is_and_cuts_there_only_when_told_to() {
    let folder = Folder::new();
    let acknowledged = killed_under_load(&folder, 4);
    let chain = chain(&folder);
    let batch = chain.iter().skip(chain.len() / 2).find(|batch| batch.kind == 1).unwrap();
    files::flip(&batch.path, batch.offset + 100);
    let salvage = |flag: &[&str]| {
        let output = std::process::Command::new(common::executable())
            .args(["salvage", "--data-dir"])
            .arg(folder.data())
            .args(flag)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = salvage(&[]);
    assert!(said.contains(&format!("index {}", batch.first_index)), "{said}");
    Launch::new(&folder.data()).refused();

    let said = salvage(&["--give-up-acknowledged-writes"]);
    assert!(said.contains(&format!("behind index {}", batch.first_index - 1)), "{said}");
    assert!(salvage(&[]).contains("sound"));
    let server = Launch::new(&folder.data()).start();
    let revision = server.client().revision().unwrap();
    let (kept, lost): (Acknowledged, Acknowledged) =
        acknowledged.into_iter().partition(|(_, (acknowledged, _))| *acknowledged <= revision);
    assert!(!kept.is_empty() && !lost.is_empty());
    check_all_there(&server, &kept);
    server.client().put("after", "salvage").unwrap();
}
