//! Which processor takes a block device's interrupts, as far as the kernel says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mapped devices that are looked through.
const LAYERS_MAX: usize = 8;

/// The one processor that takes the interrupts of the device below `folder`'s file system. `None` where several do (a
/// device with a queue for each), where there is no such device, or where the kernel does not tell.
pub fn processor(folder: &Path) -> Option<usize> {
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let block = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let disk = lowest(whole_disk(block), LAYERS_MAX)?;
    // Where there are several queues each core has its own, and its own interrupts.
    if fs::read_dir(disk.join("mq")).ok()?.count() != 1 {
        return None;
    }
    let hardware = fs::canonicalize(disk.join("device")).ok()?;
    let vectors = hardware.ancestors().map(|folder| folder.join("msi_irqs")).find(|folder| folder.is_dir())?;
    let names = fs::read_dir(vectors).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.parse().ok());
    // Beside the queue's own interrupt a device has some that hardly ever come; where the counts are hidden, the queue's
    // is the last.
    let table = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let busiest = numbers.max_by_key(|number: &u32| (interrupts_taken(&table, *number), *number))?;
    fs::read_to_string(format!("/proc/irq/{busiest}/effective_affinity_list")).ok()?.trim().parse().ok()
}

/// The device that a mapped one (of the device mapper, say) lies on, where it is one.
fn lowest(disk: PathBuf, layers: usize) -> Option<PathBuf> {
    let below: Vec<PathBuf> = match fs::read_dir(disk.join("slaves")) {
        Ok(entries) => entries.filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok()).collect(),
        Err(_) => Vec::new(),
    };
    match &below[..] {
        [] => Some(disk),
        [one] if layers > 0 => lowest(whole_disk(one.clone()), layers - 1),
        _ => None,
    }
}

/// A partition's disk; a disk is its own.
fn whole_disk(block: PathBuf) -> PathBuf {
    match block.parent() {
        Some(disk) if block.join("partition").exists() => disk.to_path_buf(),
        _ => block,
    }
}

/// How often an interrupt came, on all processors together.
fn interrupts_taken(table: &str, number: u32) -> u64 {
    let name = format!("{number}:");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(&name));
    line.map_or(0, |line| line.split_whitespace().map_while(|count| count.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_counted_over_all_processors() {
        let table = "           CPU0       CPU1\n  3:  1  2  PCI  virtio0-config\n 36:  10  575  PCI-MSIX 1-edge  virtio1-req.0\n";
        assert_eq!(interrupts_taken(table, 36), 585);
        assert_eq!(interrupts_taken(table, 3), 3);
        assert_eq!(interrupts_taken(table, 6), 0);
    }

    #[test]
    fn what_has_no_device_has_no_processor() {
        assert_eq!(processor(Path::new("/proc")), None);
    }
}
