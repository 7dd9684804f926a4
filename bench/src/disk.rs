//! The disk's share of a commit: how long one synchronous write of 4 KiB takes, with no server in the way.
//!
//! The file is filled with zeroes and synced before the first write, so that no write allocates or journals; each write
//! goes around the page cache, and one is in flight at a time.

use crate::error::BenchError;
use crate::limits::{DISK_BLOCK_BYTES, DISK_FILE_BYTES, DISK_WARMUP_WRITES};
use crate::load::{nanos, new_histogram};
use crate::plan::DiskPlan;
use crate::report::{Table, show};
use crate::stats::median;
use hdrhistogram::Histogram;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// How a write is made synchronous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncForm {
    /// The file is open with O_DSYNC: the write's completion says that it is durable.
    Dsync,
    /// The write is followed by an fdatasync that is linked to it.
    LinkedFdatasync,
}

impl SyncForm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Dsync, Self::LinkedFdatasync];

    fn label(self) -> &'static str {
        match self {
            Self::Dsync => "O_DIRECT | O_DSYNC",
            Self::LinkedFdatasync => "O_DIRECT, linked fdatasync",
        }
    }
}

/// What one form's writes took.
#[derive(Clone, Debug, Serialize)]
pub struct FormResult {
    /// The form.
    pub form: SyncForm,
    /// Medians over the rounds.
    pub median: WriteFigures,
    /// Every round's figures, in order.
    pub rounds: Vec<WriteFigures>,
}

/// Times of writes, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "each one's name says what it is")]
pub struct WriteFigures {
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// Everything that a run on a disk measured.
#[derive(Clone, Debug, Serialize)]
pub struct DiskReport {
    /// Where the file was.
    pub dir: String,
    /// Bytes of a write.
    pub block_bytes: usize,
    /// Writes of each form in a round.
    pub writes_per_round: u64,
    /// Each form.
    pub forms: Vec<FormResult>,
    /// The form with the smaller median: the floor.
    pub better: SyncForm,
}

impl WriteFigures {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), max_us: at(1.0) }
    }

    fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
        Self { p50_us: of(|r| r.p50_us), p90_us: of(|r| r.p90_us), p99_us: of(|r| r.p99_us), max_us: of(|r| r.max_us) }
    }
}

impl DiskReport {
    /// Puts a report together from each form's rounds.
    pub fn new(plan: &DiskPlan, rounds: [Vec<WriteFigures>; 2]) -> Self {
        let forms = SyncForm::ALL
            .into_iter()
            .zip(rounds)
            .map(|(form, rounds)| FormResult { form, median: WriteFigures::median(&rounds), rounds })
            .collect::<Vec<_>>();
        let better = forms.iter().min_by(|a, b| a.median.p50_us.total_cmp(&b.median.p50_us));
        Self {
            dir: plan.dir.display().to_string(),
            block_bytes: DISK_BLOCK_BYTES,
            writes_per_round: plan.total,
            better: better.expect("there are two forms").form,
            forms,
        }
    }

    /// The form with the smaller median.
    pub fn floor(&self) -> &FormResult {
        self.forms.iter().find(|result| result.form == self.better).expect("the better form is one of them")
    }

    /// The report as JSON, one object.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts are JSON")
    }

    /// The report as text, in columns.
    pub fn to_text(&self) -> String {
        let rounds = self.forms[0].rounds.len();
        let mut table = Table::default();
        table.row(["", "p50 µs", "p90 µs", "p99 µs", "max µs", ""].map(str::to_owned).to_vec());
        for FormResult { form, median, .. } in &self.forms {
            let mut row = vec![form.label().to_owned()];
            row.extend([median.p50_us, median.p90_us, median.p99_us, median.max_us].map(|us| show(Some(us), 1)));
            row.push(if *form == self.better { "better".to_owned() } else { String::new() });
            table.row(row);
        }
        format!(
            "synchronous writes of {} bytes in {}, {} of each form a round, medians over {rounds} rounds\n\n{}",
            self.block_bytes,
            self.dir,
            self.writes_per_round,
            table.to_text()
        )
    }
}

/// Runs a plan.
pub fn measure(plan: &DiskPlan, progress: &mut dyn FnMut(String)) -> Result<DiskReport, BenchError> {
    let mut probe = DiskProbe::open(&plan.dir)?;
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 0..plan.rounds {
        for (form, figures) in SyncForm::ALL.into_iter().zip(&mut rounds) {
            figures.push(probe.round(form, plan.total)?);
        }
        progress(format!("{}, round {} of {}", plan.dir.display(), number + 1, plan.rounds));
    }
    Ok(DiskReport::new(plan, rounds))
}

/// One block to write. Static, so that no operation of the kernel outlives it.
#[repr(C, align(4096))]
struct Block([u8; DISK_BLOCK_BYTES]);

static BLOCK: Block = Block([0xa5; DISK_BLOCK_BYTES]);

const _: () = assert!(align_of::<Block>() == DISK_BLOCK_BYTES && size_of::<Block>() == DISK_BLOCK_BYTES);

/// A file to write to, and a ring to do it with.
pub struct DiskProbe {
    /// The file's name while it had one, for messages.
    path: String,
    ring: IoUring,
    dsync: OwnedFd,
    plain: OwnedFd,
    next_block: usize,
}

impl DiskProbe {
    /// Makes the file. It loses its name at once, so nothing is left of it whatever ends the process.
    pub fn open(dir: &Path) -> Result<Self, BenchError> {
        let path = dir.join(format!(".garboard-bench-{}", std::process::id()));
        let shown = path.display().to_string();
        let failed = |action, source| BenchError::Disk { action, path: shown.clone(), source };
        let opened = open_pair(&path);
        // Of a file that could not be made nothing can be removed.
        let _ = std::fs::remove_file(&path);
        let (dsync, plain) = opened.map_err(|(action, error)| failed(action, error))?;
        let ring = IoUring::new(4).map_err(|error| failed("setting up a ring of the kernel for", error))?;
        let mut probe = Self { path: shown.clone(), ring, dsync, plain, next_block: 0 };
        for form in SyncForm::ALL {
            probe.round(form, DISK_WARMUP_WRITES)?;
        }
        Ok(probe)
    }

    /// Writes so many blocks in one form, one after the other.
    pub fn round(&mut self, form: SyncForm, writes: u64) -> Result<WriteFigures, BenchError> {
        let mut times = new_histogram();
        for _ in 0..writes {
            let begin = Instant::now();
            self.write(form).map_err(|source| BenchError::Disk {
                action: "writing to",
                path: self.path.clone(),
                source,
            })?;
            times.saturating_record(nanos(begin.elapsed()));
        }
        Ok(WriteFigures::of(&times))
    }

    fn write(&mut self, form: SyncForm) -> io::Result<()> {
        let offset = u64::try_from(self.next_block * DISK_BLOCK_BYTES).expect("the file is small");
        self.next_block = (self.next_block + 1) % (DISK_FILE_BYTES / DISK_BLOCK_BYTES);
        let len = u32::try_from(DISK_BLOCK_BYTES).expect("a block is small");
        let write =
            |file: &OwnedFd| opcode::Write::new(types::Fd(file.as_raw_fd()), BLOCK.0.as_ptr(), len).offset(offset);
        match form {
            SyncForm::Dsync => self.complete(&[write(&self.dsync).build()], &[DISK_BLOCK_BYTES]),
            SyncForm::LinkedFdatasync => {
                let file = types::Fd(self.plain.as_raw_fd());
                let sync = opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build();
                let write = write(&self.plain).build().flags(squeue::Flags::IO_LINK);
                self.complete(&[write, sync], &[DISK_BLOCK_BYTES, 0])
            }
        }
    }

    /// Submits operations together and waits for them; each must have its result.
    fn complete(&mut self, operations: &[squeue::Entry], results: &[usize]) -> io::Result<()> {
        // SAFETY: the only memory that operations name is static, and the kernel holds the files itself.
        #[allow(unsafe_code)]
        unsafe {
            self.ring.submission().push_multiple(operations).map_err(io::Error::other)?;
        }
        self.ring.submit_and_wait(operations.len())?;
        let mut outcome = Ok(());
        for (entry, expected) in self.ring.completion().zip(results) {
            outcome = outcome.and(match entry.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                done if usize::try_from(done) == Ok(*expected) => Ok(()),
                done => Err(io::Error::other(format!("{done} bytes were written, not {expected}"))),
            });
        }
        outcome
    }
}

/// The file, filled and durable, open in both ways.
fn open_pair(path: &Path) -> Result<(OwnedFd, OwnedFd), (&'static str, io::Error)> {
    let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let filler =
        rustix::fs::open(path, create, Mode::from_raw_mode(0o600)).map_err(|error| ("creating", error.into()))?;
    let zeroes = vec![0; 1 << 20];
    let mut filled = 0;
    while filled < DISK_FILE_BYTES {
        let piece = &zeroes[..zeroes.len().min(DISK_FILE_BYTES - filled)];
        filled += rustix::io::write(filler.as_fd(), piece).map_err(|error| ("filling", error.into()))?;
    }
    rustix::fs::fsync(&filler).map_err(|error| ("syncing", error.into()))?;
    let open = |extra| {
        rustix::fs::open(path, OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC | extra, Mode::empty())
            .map_err(|error| ("opening with O_DIRECT", error.into()))
    };
    Ok((open(OFlags::DSYNC)?, open(OFlags::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn figures(p50_us: f64) -> WriteFigures {
        WriteFigures { p50_us, p90_us: 2.0, p99_us: 3.0, max_us: 4.0 }
    }

    #[test]
    fn the_form_with_the_smaller_median_is_the_floor() {
        let plan = DiskPlan { dir: PathBuf::from("/d"), total: 10, rounds: 3, json: false };
        let dsync = vec![figures(90.0), figures(500.0), figures(91.0)];
        let linked = vec![figures(100.0), figures(101.0), figures(99.0)];
        let report = DiskReport::new(&plan, [dsync, linked]);
        assert_eq!((report.better, report.floor().median.p50_us), (SyncForm::Dsync, 91.0));
        assert!(
            report.to_text().lines().any(|line| line.starts_with("O_DIRECT | O_DSYNC") && line.ends_with("better"))
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["better"], "dsync");
        assert_eq!(json["forms"][1]["median"]["p50_us"], 100.0);
    }

    #[test]
    fn writes_are_timed_and_nothing_is_left_in_the_directory() {
        let dir = std::env::temp_dir().join(format!("garboard-bench-disk-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let outcome = DiskProbe::open(&dir);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        match outcome {
            Ok(mut probe) => {
                for form in SyncForm::ALL {
                    let figures = probe.round(form, 20).unwrap();
                    assert!(figures.p50_us > 0.0 && figures.p50_us <= figures.max_us);
                }
            }
            // A file system in memory has no O_DIRECT, and says so.
            Err(BenchError::Disk { action, .. }) => assert_eq!(action, "opening with O_DIRECT"),
            Err(other) => panic!("{other:?}"),
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = DiskProbe::open(Path::new("/nowhere/at/all")).err().unwrap();
        assert!(error.explain().starts_with("creating /nowhere/at/all/"), "{}", error.explain());
    }
}
