use super::*;

fn disk_with(name: &str, size: u64) -> Disk {
    let mut disk = Disk::new();
    disk.create(name, size).unwrap();
    disk.sync(name).unwrap();
    disk.sync_folder().unwrap();
    disk
}

fn sector_of(disk: &mut Disk, name: &str, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR_SIZE];
    disk.read(name, sector * SECTOR_BYTES, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn a_crash_keeps_exactly_the_chosen_subset_of_unsynced_sectors() {
    let mut disk = disk_with("log", 4096);
    disk.write_durable("log", 0, &[9; 1024]).unwrap();
    disk.write("log", 512, &[1; 1536]).unwrap();
    assert_eq!(disk.unsynced_sectors(), 3);
    for bits in 0..8 {
        let mut crashed = disk.clone();
        crashed.crash(Kept::Bits(bits), 0);
        let expect = |bit: u64, lost: u8| if bits >> bit & 1 == 1 { 1 } else { lost };
        assert_eq!(sector_of(&mut crashed, "log", 0), 9);
        assert_eq!(sector_of(&mut crashed, "log", 1), expect(0, 9));
        assert_eq!(sector_of(&mut crashed, "log", 2), expect(1, 0));
        assert_eq!(sector_of(&mut crashed, "log", 3), expect(2, 0));
        assert_eq!(crashed.unsynced_sectors(), 0);
    }
}

#[test]
fn any_version_of_a_sector_written_twice_may_survive() {
    let mut disk = disk_with("log", 512);
    disk.write("log", 0, &[1; 512]).unwrap();
    disk.write("log", 0, &[2; 512]).unwrap();
    let mut seen = Vec::new();
    for bits in 0..4 {
        let mut crashed = disk.clone();
        crashed.crash(Kept::Bits(bits), 0);
        seen.push(sector_of(&mut crashed, "log", 0));
    }
    assert_eq!(seen, [0, 1, 2, 2]);
}

#[test]
fn a_completed_write_is_durable_and_another_one_in_flight_is_not() {
    let mut disk = disk_with("log", 1024);
    let first = disk.submit("log", 0, &[1; 512]).unwrap();
    let _second = disk.submit("log", 512, &[2; 512]).unwrap();
    disk.complete(first).unwrap();
    disk.crash(Kept::Nothing, 0);
    assert_eq!((sector_of(&mut disk, "log", 0), sector_of(&mut disk, "log", 1)), (1, 0));
}

#[test]
fn names_and_sizes_need_their_own_syncs() {
    let mut disk = disk_with("a", 512);
    disk.create("b.tmp", 512).unwrap();
    disk.write("b.tmp", 0, &[5; 512]).unwrap();
    disk.sync("b.tmp").unwrap();
    disk.rename("b.tmp", "b").unwrap();
    disk.allocate("a", 1024).unwrap();

    let names = |metadata: usize| {
        let mut crashed = disk.clone();
        crashed.crash(Kept::Everything, metadata);
        crashed.list().map(|(name, size)| format!("{name}:{size}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(0), "a:512");
    assert_eq!(names(1), "a:512 b.tmp:512");
    assert_eq!(names(2), "a:512 b:512");
    assert_eq!(names(3), "a:1024 b:512");
    disk.sync_folder().unwrap();
    disk.crash(Kept::Nothing, 0);
    assert_eq!(sector_of(&mut disk, "b", 0), 5);
    assert_eq!(disk.size("a").unwrap(), 512);
}

#[test]
fn a_sync_after_a_failed_one_succeeds_and_saves_nothing() {
    let mut disk = disk_with("log", 512);
    disk.write("log", 0, &[1; 512]).unwrap();
    disk.plan(Operation::Sync, 0, Fault::Error);
    assert_eq!(disk.sync("log"), Err(DiskError::Sync));
    disk.sync("log").unwrap();
    assert_eq!(sector_of(&mut disk, "log", 0), 1);
    disk.crash(Kept::Nothing, 0);
    assert_eq!(sector_of(&mut disk, "log", 0), 0);
}

#[test]
fn planned_faults_hit_the_operation_they_name() {
    let mut disk = disk_with("log", 2048);
    disk.plan(Operation::Write, 1, Fault::Short(1023));
    disk.plan(Operation::Write, 2, Fault::Error);
    disk.write("log", 0, &[1; 512]).unwrap();
    assert_eq!(disk.write("log", 512, &[2; 1024]), Err(DiskError::ShortWrite { bytes: 512 }));
    assert_eq!(disk.write("log", 512, &[2; 512]), Err(DiskError::Write));
    disk.write("log", 512, &[2; 512]).unwrap();
    disk.plan(Operation::Read, 0, Fault::Error);
    assert_eq!(disk.read("log", 512, &mut [0; 512]), Err(DiskError::Read { sector: 1 }));
    disk.set_capacity(Some(4096));
    assert_eq!(disk.create("more", 2560), Err(DiskError::Full));
    disk.allocate("more", 2048).unwrap();
}

#[test]
fn rot_changes_what_is_durable() {
    let mut disk = disk_with("log", 2048);
    disk.write_durable("log", 0, &[1; 1024]).unwrap();
    let older = disk.clone();
    disk.write_durable("log", 0, &[2; 1024]).unwrap();
    disk.write_durable("log", 1024, &[3; 512]).unwrap();
    disk.rot("log", 0, Rot::Stale(&older)).unwrap();
    assert_eq!(sector_of(&mut disk, "log", 0), 1);
    disk.rot("log", 0, Rot::Misdirected { file: "log", sector: 2 }).unwrap();
    assert_eq!(sector_of(&mut disk, "log", 0), 3);
    disk.rot("log", 0, Rot::Zero).unwrap();
    assert_eq!(sector_of(&mut disk, "log", 0), 0);
    disk.rot("log", 1, Rot::Unreadable).unwrap();
    assert_eq!(disk.read("log", 0, &mut [0; 1024]), Err(DiskError::Read { sector: 1 }));
    disk.rot("log", 2, Rot::Flip(13)).unwrap();
    let mut bytes = [0; SECTOR_SIZE];
    disk.read("log", 1024, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[1]), (3, 3 ^ 1 << 5));
}

#[test]
fn a_clone_shares_nothing_that_changes() {
    let mut disk = disk_with("log", 512);
    let mut copy = disk.clone();
    copy.write_durable("log", 0, &[7; 512]).unwrap();
    assert_eq!((sector_of(&mut disk, "log", 0), sector_of(&mut copy, "log", 0)), (0, 7));
}

#[test]
fn what_a_failed_sync_abandoned_is_on_the_medium_or_is_not() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mut disk = disk_with("log", 512);
        disk.write("log", 0, &[1; 512]).unwrap();
        disk.plan(Operation::Sync, 0, Fault::Error);
        assert_eq!(disk.sync("log"), Err(DiskError::Sync));
        disk.settle_abandoned(&mut Rng::new(seed));
        let shown = sector_of(&mut disk, "log", 0);
        disk.crash(Kept::Nothing, 0);
        assert_eq!(sector_of(&mut disk, "log", 0), shown, "what is read then survives");
        seen.insert(shown);
    }
    assert_eq!(seen.len(), 2);
}
