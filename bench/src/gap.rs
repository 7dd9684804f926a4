//! How long a cluster acknowledges no write while something happens to one of its members.
//!
//! Every member is sent puts at a fixed rate, whatever became of the earlier ones, so that what is measured is when the
//! cluster acknowledges again, to within that interval, and not when some client tries again.

use crate::client::Connection;
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::measure::block_on;
use crate::pacer::FineTimer;
use crate::proto::PutRequest;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between two attempts to connect to a member that is gone.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// Writes to one member that may be unanswered; more are not sent.
const UNANSWERED_MAX: usize = 10_000;

/// What is written, and for how long.
#[derive(Clone, Debug)]
pub struct GapPlan {
    /// The members.
    pub endpoints: Vec<Endpoint>,
    /// Between two puts to one member.
    pub interval: Duration,
    /// How long a put may take.
    pub timeout: Duration,
    /// Writing before what happens.
    pub before: Duration,
    /// Writing after it.
    pub after: Duration,
}

/// What became of the writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The longest time without an acknowledgement, from the moment at which it happened.
    pub longest: Duration,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that were answered with an error or not at all, by its text. Those that broke with their connection are not
    /// among them.
    pub failed: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Seen {
    acknowledged: Vec<Instant>,
    failed: BTreeMap<String, u64>,
}

/// Writes to every member, has `happen` called on a thread of its own, and finds the longest gap.
///
/// # Errors
/// When a member can't be reached at the beginning, or nothing is acknowledged afterwards.
pub fn measure_gap(plan: &GapPlan, happen: impl FnOnce() + Send + 'static) -> Result<Gap, BenchError> {
    block_on(async {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let writers = tokio::task::LocalSet::new();
        for endpoint in &plan.endpoints {
            let connection = Connection::open(endpoint).await?;
            writers.spawn_local(write(plan.clone(), endpoint.clone(), connection, seen.clone()));
        }
        let (happened, happening, end) = writers
            .run_until(async {
                tokio::time::sleep(plan.before).await;
                let happened = Instant::now();
                let happening = std::thread::spawn(happen);
                tokio::time::sleep(plan.after).await;
                (happened, happening, Instant::now())
            })
            .await;
        drop(writers);
        // A panic there is the caller's to see.
        let _ = happening.join();
        let seen = std::mem::take(&mut *seen.borrow_mut());
        let after = seen.acknowledged.iter().copied().filter(|at| *at >= happened);
        let instants: Vec<Instant> = std::iter::once(happened).chain(after).chain([end]).collect();
        let gaps = instants.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0]));
        let longest = gaps.max().unwrap_or_default();
        Ok(Gap {
            longest,
            acknowledged: u64::try_from(seen.acknowledged.len()).unwrap_or(u64::MAX),
            failed: seen.failed,
        })
    })?
}

/// Sends puts to one member until the run is over.
async fn write(plan: GapPlan, endpoint: Endpoint, mut connection: Connection, seen: Rc<RefCell<Seen>>) {
    let Ok(timer) = FineTimer::new() else { return };
    let unanswered = Rc::new(());
    let mut due = Instant::now();
    for number in 0_u64.. {
        if connection.is_closed() {
            match Connection::open(&endpoint).await {
                Ok(opened) => connection = opened,
                Err(_) => {
                    tokio::time::sleep(RECONNECT_INTERVAL).await;
                    continue;
                }
            }
        }
        if Rc::strong_count(&unanswered) <= UNANSWERED_MAX {
            let (seen, connection, unanswered) = (seen.clone(), connection.clone(), unanswered.clone());
            let key = format!("garboard-gap/{endpoint}/{}", number % 1_000);
            let timeout = plan.timeout;
            tokio::task::spawn_local(async move {
                put(key, &connection, timeout, &seen).await;
                drop(unanswered);
            });
        }
        due = (due + plan.interval).max(Instant::now());
        if timer.sleep(due.saturating_duration_since(Instant::now())).await.is_err() {
            return;
        }
    }
}

async fn put(key: String, connection: &Connection, timeout: Duration, seen: &RefCell<Seen>) {
    let request = PutRequest { key: key.into(), value: "0123456789abcdef".into(), lease: 0 };
    let answer = tokio::time::timeout(timeout, connection.kv().put(request)).await;
    let mut seen = seen.borrow_mut();
    let text = match answer {
        Ok(Ok(_)) => {
            seen.acknowledged.push(Instant::now());
            return;
        }
        Ok(Err(_)) if connection.is_closed() => return,
        Ok(Err(status)) => status.message().to_owned(),
        Err(_elapsed) => "no answer".to_owned(),
    };
    *seen.failed.entry(text).or_default() += 1;
}
