//! The load against a server in this process that answers as etcd would.

#![allow(clippy::unwrap_used, reason = "a stub that cannot do its part fails the test")]
#![allow(clippy::disallowed_methods, reason = "the stub is a server: it has threads and clocks")]

mod proto {
    #![allow(missing_docs, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/stub/etcdserverpb.rs"));

    pub mod diagnostics {
        include!(concat!(env!("OUT_DIR"), "/stub/garboard.v1.rs"));
    }

    pub mod health {
        include!(concat!(env!("OUT_DIR"), "/stub/grpc.health.v1.rs"));
    }
}

use bytes::Bytes;
use clap::Parser;
use garboard_bench::{
    BenchArgs, BenchError, Endpoint, GapPlan, Metric, Report, Task, measure, measure_gap, member_status, move_leader,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use proto::diagnostics::diagnostics_server::{Diagnostics, DiagnosticsServer};
use proto::diagnostics::{Bucket, CheckpointRequest, CheckpointResponse, Stage, StagesRequest, StagesResponse};
use proto::health::health_server::{Health, HealthServer};
use proto::health::{HealthCheckRequest, HealthCheckResponse};
use proto::kv_server::{Kv, KvServer};
use proto::maintenance_server::{Maintenance, MaintenanceServer};
use proto::watch_request::RequestUnion;
use proto::watch_server::{Watch, WatchServer};
use proto::{
    CompactionRequest, CompactionResponse, DefragmentRequest, DefragmentResponse, DeleteRangeRequest,
    DeleteRangeResponse, Event, KeyValue, MoveLeaderRequest, MoveLeaderResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, ResponseHeader, StatusRequest, StatusResponse, WatchRequest, WatchResponse,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type WatchSender = mpsc::UnboundedSender<Result<WatchResponse, Status>>;

/// One watch: its keys, its id on its stream, and where its events go.
struct Watcher {
    key: Bytes,
    range_end: Bytes,
    watch_id: i64,
    sender: WatchSender,
}

/// What happened at a revision.
struct Change {
    key: Bytes,
    deleted: bool,
}

/// A store of keys in memory, with faults that a test chooses.
#[derive(Clone, Default)]
struct Stub {
    keys: Arc<Mutex<BTreeMap<Bytes, Bytes>>>,
    /// The change of revision `n + 1` is the `n`-th.
    history: Arc<Mutex<Vec<Change>>>,
    watchers: Arc<Mutex<Vec<Watcher>>>,
    put_count: Arc<Mutex<u64>>,
    check_count: Arc<Mutex<u64>>,
    /// What it was asked to do beside reading and writing.
    asked: Arc<Mutex<Vec<String>>>,
    /// Every n-th put is refused.
    refuse_every: Option<u64>,
    /// The first put takes so long, and all others wait for it, as behind a disk that stalls.
    stall_first: Option<Duration>,
    disk: Arc<tokio::sync::Mutex<bool>>,
    /// Every n-th event is not sent.
    lose_event: Option<u64>,
    /// It has Garboard's own service.
    is_garboard: bool,
}

fn header(revision: usize) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision: i64::try_from(revision).unwrap(), ..ResponseHeader::default() })
}

fn is_within(key: &Bytes, start: &Bytes, end: &Bytes) -> bool {
    if end.is_empty() { key == start } else { (start..end).contains(&key) }
}

impl Stub {
    /// The keys as they were at a revision.
    fn keys_at(&self, revision: i64) -> Vec<Bytes> {
        let history = self.history.lock().unwrap();
        let mut keys = std::collections::BTreeSet::new();
        for change in history.iter().take(usize::try_from(revision).unwrap()) {
            if change.deleted {
                keys.remove(&change.key);
            } else {
                keys.insert(change.key.clone());
            }
        }
        keys.into_iter().collect()
    }

    fn send_events(&self, number: u64, key: &Bytes, value: &Bytes, revision: usize) {
        if self.lose_event.is_some_and(|n| number.is_multiple_of(n)) {
            return;
        }
        let mod_revision = i64::try_from(revision).unwrap();
        for watcher in self.watchers.lock().unwrap().iter() {
            if is_within(key, &watcher.key, &watcher.range_end) {
                let kv = KeyValue { key: key.clone(), value: value.clone(), mod_revision };
                let events = vec![Event { kv: Some(kv) }];
                let response = WatchResponse { watch_id: watcher.watch_id, events, ..WatchResponse::default() };
                // A client that is gone needs no events.
                let _ = watcher.sender.send(Ok(response));
            }
        }
    }
}

#[tonic::async_trait]
impl Kv for Stub {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let found: Vec<Bytes> = if request.revision > 0 {
            let keys = self.keys_at(request.revision).into_iter();
            keys.filter(|key| is_within(key, &request.key, &request.range_end)).collect()
        } else {
            let keys = self.keys.lock().unwrap();
            let within = |key: &Bytes| is_within(key, &request.key, &request.range_end);
            keys.iter().filter(|(key, _)| within(key)).map(|(_, value)| value.clone()).collect()
        };
        let count = i64::try_from(found.len()).unwrap();
        let limit = if request.limit == 0 { usize::MAX } else { usize::try_from(request.limit).unwrap() };
        let kvs = if request.count_only { Vec::new() } else { found.into_iter().take(limit).collect() };
        let header = header(self.history.lock().unwrap().len());
        Ok(Response::new(RangeResponse { header, count, kvs, ..RangeResponse::default() }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let PutRequest { key, value, .. } = request.into_inner();
        if let Some(stall) = self.stall_first {
            let mut stalled = self.disk.lock().await;
            if !std::mem::replace(&mut stalled, true) {
                tokio::time::sleep(stall).await;
            }
        }
        let number = {
            let mut count = self.put_count.lock().unwrap();
            *count += 1;
            *count
        };
        if self.refuse_every.is_some_and(|n| number.is_multiple_of(n)) {
            return Err(Status::resource_exhausted("etcdserver: too many requests"));
        }
        self.keys.lock().unwrap().insert(key.clone(), value.clone());
        let revision = {
            let mut history = self.history.lock().unwrap();
            history.push(Change { key: key.clone(), deleted: false });
            history.len()
        };
        self.send_events(number, &key, &value, revision);
        Ok(Response::new(PutResponse { header: header(revision) }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let DeleteRangeRequest { key: start, range_end } = request.into_inner();
        let mut history = self.history.lock().unwrap();
        self.keys.lock().unwrap().retain(|key, _| {
            let deleted = is_within(key, &start, &range_end);
            if deleted {
                history.push(Change { key: key.clone(), deleted });
            }
            !deleted
        });
        Ok(Response::new(DeleteRangeResponse {}))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        let CompactionRequest { revision, physical } = request.into_inner();
        self.asked.lock().unwrap().push(format!("compact {revision} {physical}"));
        Ok(Response::new(CompactionResponse {}))
    }
}

#[tonic::async_trait]
impl Maintenance for Stub {
    async fn defragment(&self, _: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.asked.lock().unwrap().push("defragment".into());
        Ok(Response::new(DefragmentResponse {}))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let header = Some(ResponseHeader { member_id: 7, revision: 1, raft_term: 3 });
        Ok(Response::new(StatusResponse { header, db_size: 4_096, leader: 7, raft_applied_index: 9 }))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.asked.lock().unwrap().push(format!("move {}", request.into_inner().target_id));
        Err(Status::failed_precondition("etcdserver: bad leader transferee"))
    }
}

#[tonic::async_trait]
impl Diagnostics for Stub {
    async fn stages(&self, _: Request<StagesRequest>) -> Result<Response<StagesResponse>, Status> {
        if !self.is_garboard {
            return Err(Status::unimplemented("unknown service garboard.v1.Diagnostics"));
        }
        let count = *self.put_count.lock().unwrap();
        let buckets = vec![Bucket { end_ns: 5_000, count }];
        let stage = Stage { name: "queue".into(), core: 0, count, sum_ns: count * 4_000, buckets };
        Ok(Response::new(StagesResponse { stages: vec![stage] }))
    }

    async fn checkpoint(&self, _: Request<CheckpointRequest>) -> Result<Response<CheckpointResponse>, Status> {
        if !self.is_garboard {
            return Err(Status::unimplemented("unknown service garboard.v1.Diagnostics"));
        }
        self.asked.lock().unwrap().push("checkpoint".into());
        Ok(Response::new(CheckpointResponse { published_index: 7, saved_index: 7 }))
    }
}

#[tonic::async_trait]
impl Health for Stub {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        *self.check_count.lock().unwrap() += 1;
        Ok(Response::new(HealthCheckResponse { status: 1 }))
    }
}

struct Receiver(mpsc::UnboundedReceiver<Result<WatchResponse, Status>>);

impl Stream for Receiver {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

#[tonic::async_trait]
impl Watch for Stub {
    type WatchStream = Receiver;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Receiver>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let stub = self.clone();
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut next_id = 0;
            while let Some(Ok(request)) = requests.next().await {
                let Some(RequestUnion::CreateRequest(create)) = request.request_union else { continue };
                let watch_id = next_id;
                next_id += 1;
                let created = WatchResponse { watch_id, created: true, ..WatchResponse::default() };
                let watcher =
                    Watcher { key: create.key, range_end: create.range_end, watch_id, sender: sender.clone() };
                stub.watchers.lock().unwrap().push(watcher);
                // A client that is gone needs no answer.
                let _ = sender.send(Ok(created));
            }
        });
        Ok(Response::new(Receiver(receiver)))
    }
}

/// Serves on a free port of the loopback, on a thread of its own, as long as the test process lives.
fn serve(stub: Stub) -> SocketAddr {
    let (address, bound) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (kv, watch) = (KvServer::new(stub.clone()), WatchServer::new(stub.clone()));
                let health = HealthServer::new(stub.clone());
                let maintenance = MaintenanceServer::new(stub.clone());
                let diagnostics = DiagnosticsServer::new(stub.clone());
                let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (mut kv, mut watch, mut health) = (kv.clone(), watch.clone(), health.clone());
                    let (mut maintenance, mut diagnostics) = (maintenance.clone(), diagnostics.clone());
                    async move {
                        match request.uri().path().split('/').nth(1) {
                            Some("etcdserverpb.Watch") => tower::Service::call(&mut watch, request).await,
                            Some("grpc.health.v1.Health") => tower::Service::call(&mut health, request).await,
                            Some("etcdserverpb.Maintenance") => tower::Service::call(&mut maintenance, request).await,
                            Some("garboard.v1.Diagnostics") => tower::Service::call(&mut diagnostics, request).await,
                            _ => tower::Service::call(&mut kv, request).await,
                        }
                    }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                tokio::spawn(connection);
            }
        });
    });
    bound.recv().unwrap()
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn run(line: &str) -> Result<Report, BenchError> {
    let words = std::iter::once("bench").chain(line.split_ascii_whitespace());
    match Task::new(Cli::try_parse_from(words).unwrap().bench)? {
        Task::Load(plan) => measure(&plan, &mut |_| {}),
        other => panic!("{other:?} is no load"),
    }
}

fn figure(report: &Report, target: usize, metric: Metric) -> f64 {
    report.results[target].median.get(metric).unwrap_or_else(|| panic!("{metric:?} was not measured"))
}

#[test]
fn every_put_of_every_round_arrives_and_is_measured() {
    let stub = Stub::default();
    let address = serve(stub.clone());
    let pid = std::process::id();
    let report = run(&format!(
        "put --endpoints {address} --clients 8 --conns 3 --threads 2 --total 501 --rounds 3 --warmup 10 --pid {pid}"
    ))
    .unwrap();
    assert_eq!(*stub.put_count.lock().unwrap(), 10 + 3 * 501);
    assert_eq!(report.results[0].rounds.len(), 3);
    assert!(figure(&report, 0, Metric::ThroughputPerSecond) > 0.0);
    assert!(figure(&report, 0, Metric::LatencyP50Us) <= figure(&report, 0, Metric::LatencyMaxUs));
    assert!(figure(&report, 0, Metric::ServerCpuSecondsPer1000) >= 0.0);
    assert!(report.ratio.is_none());
}

#[test]
fn no_op_calls_touch_no_key() {
    let stub = Stub::default();
    let address = serve(stub.clone());
    let report = run(&format!("noop --endpoints {address} --clients 4 --conns 2 --total 100 --warmup 0")).unwrap();
    assert_eq!(figure(&report, 0, Metric::Errors), 0.0);
    // One more than the load's: the question whether the endpoint is there.
    assert_eq!(*stub.check_count.lock().unwrap(), 101);
    assert_eq!(*stub.put_count.lock().unwrap(), 0);
}

#[test]
fn both_endpoints_of_a_comparison_get_the_same_keys_and_values() {
    let (first, second) = (Stub::default(), Stub::default());
    let (a, b) = (serve(first.clone()), serve(second.clone()));
    let report =
        run(&format!("put --endpoints {a} --vs {b} --rounds 2 --total 200 --clients 4 --value-size 33")).unwrap();
    let ratio = report.ratio.as_ref().unwrap().get(Metric::LatencyP50Us).unwrap();
    let expected = figure(&report, 0, Metric::LatencyP50Us) / figure(&report, 1, Metric::LatencyP50Us);
    assert!((ratio - expected).abs() < 1e-9);
    // Two puts of one key may pass each other, so the last value of a key may differ where four clients race.
    let (first, second) = (first.keys.lock().unwrap(), second.keys.lock().unwrap());
    assert!(first.keys().eq(second.keys()));
    assert!(first.values().all(|value| value.len() == 33));
}

#[test]
fn an_open_loop_charges_a_stall_to_every_operation_that_it_held_up() {
    let stall = Duration::from_millis(300);
    let stub = Stub { stall_first: Some(stall), ..Stub::default() };
    let address = serve(stub);
    let report = run(&format!("put --endpoints {address} --clients 2 --total 200 --rate 1000 --warmup 0")).unwrap();
    // All 200 were due within the stall of 300 ms, so the median waited about 200 ms. Had latency begun when one of
    // the two clients was free, only the first two would show the stall.
    assert!(figure(&report, 0, Metric::LatencyP50Us) >= 150_000.0);
    assert!(figure(&report, 0, Metric::SendLagP50Us) >= 150_000.0);
    assert!(figure(&report, 0, Metric::DurationSeconds) >= 0.3);
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let address = serve(Stub::default());
    let report = run(&format!(
        "put --endpoints {address} --clients 16 --conns 2 --threads 2 --total 400 --rate 1000 --warmup 0"
    ))
    .unwrap();
    // The last of 400 is due after 399 ms, so no run can be faster than that.
    assert!(figure(&report, 0, Metric::DurationSeconds) >= 0.399);
}

#[test]
fn reads_fill_the_key_space_first_and_then_find_every_key() {
    let stub = Stub::default();
    let address = serve(stub.clone());
    // A key of another load under the same prefix, beyond this one's key space, is none of its keys.
    stub.keys.lock().unwrap().insert("garboard-bench/0000000050".into(), Bytes::new());
    for workload in ["range", "range --limit 7", "count"] {
        let report = run(&format!("{workload} --endpoints {address} --total 300 --key-space 50 --clients 3")).unwrap();
        assert_eq!(figure(&report, 0, Metric::Errors), 0.0, "{workload}: {:?}", report.results[0].first_error);
        assert_eq!(stub.keys.lock().unwrap().len(), 51);
    }
    assert_eq!(*stub.put_count.lock().unwrap(), 50);
}

#[test]
fn every_watcher_s_every_event_is_measured() {
    let address = serve(Stub::default());
    let report =
        run(&format!("watch --endpoints {address} --clients 2 --conns 2 --watchers 5 --total 100 --rounds 2")).unwrap();
    assert!(figure(&report, 0, Metric::EventP50Us) > 0.0);
    assert!(figure(&report, 0, Metric::EventMaxUs) >= figure(&report, 0, Metric::EventP50Us));
}

#[test]
fn watchers_of_a_range_and_of_single_keys_each_get_the_events_of_their_keys() {
    let address = serve(Stub::default());
    let report = run(&format!(
        "watch --endpoints {address} --clients 4 --conns 2 --threads 2 --total 300 --key-space 40 --watchers 3 \
         --watched-keys 20 --key-watchers 25 --key-watchers-per-stream 10 --rate 3000"
    ))
    .unwrap();
    let disturbed = report.results[0].disturbed.as_ref().unwrap();
    assert_eq!(disturbed.what, "watchers");
    assert!(disturbed.median.get(Metric::EventsPerSecond).unwrap() > 0.0);
    assert!(report.results[0].median.get(Metric::EventsPerSecond).is_none());
    assert!(disturbed.ratio_to_quiet.get(Metric::LatencyP99Us).is_some());
}

#[test]
fn an_event_that_never_comes_is_noticed() {
    let address = serve(Stub { lose_event: Some(50), ..Stub::default() });
    let error = run(&format!("watch --endpoints {address} --total 100 --warmup 0 --stall-seconds 1")).unwrap_err();
    assert!(matches!(error, BenchError::Stalled { finished: 100, .. }), "{error:?}");
}

#[test]
fn counts_at_an_older_revision_leave_out_what_came_later_and_leave_nothing_behind() {
    let stub = Stub::default();
    let address = serve(stub.clone());
    let report =
        run(&format!("count --rev-ago 10 --endpoints {address} --total 20 --key-space 50 --warmup 0")).unwrap();
    assert_eq!(figure(&report, 0, Metric::Errors), 0.0, "{:?}", report.results[0].first_error);
    assert_eq!(stub.keys.lock().unwrap().len(), 50);
    // The fill, ten puts, and the removal of the five new keys among them.
    assert_eq!(stub.history.lock().unwrap().len(), 50 + 10 + 5);
}

#[test]
fn what_disturbs_is_done_while_puts_are_measured_and_told_beside_the_quiet_rounds() {
    let stub = Stub { is_garboard: true, ..Stub::default() };
    let address = serve(stub.clone());
    let options =
        "--rate 500 --clients 4 --total 300 --warmup 0 --key-space 20 --compact-revisions 60 --range-bytes 3000";
    for (during, expected) in [
        ("compact", "compaction"),
        ("ranges", "ranges"),
        ("checkpoint", "checkpoints"),
        ("defragment", "defragmentation"),
    ] {
        let report = run(&format!("put --during {during} --endpoints {address} {options}")).unwrap();
        let disturbed = report.results[0].disturbed.as_ref().unwrap();
        assert_eq!(disturbed.what, expected);
        assert!(disturbed.passes.count >= 1, "{during}");
        assert_eq!(disturbed.passes.bytes > 0, during == "ranges");
        assert!(report.to_text().contains(expected));
    }
    let asked = stub.asked.lock().unwrap();
    // The fill, two quiet rounds or less, and the puts to compact: all of them are below the revision.
    assert_eq!(asked.iter().filter(|what| what.starts_with("compact ")).count(), 1);
    assert!(asked.contains(&"compact 380 true".to_owned()), "{asked:?}");
    assert!(asked.contains(&"defragment".to_owned()) && asked.contains(&"checkpoint".to_owned()));
}

#[test]
fn a_server_that_takes_no_checkpoints_on_request_has_quiet_rounds_alone() {
    let address = serve(Stub::default());
    let report =
        run(&format!("put --during checkpoint --endpoints {address} --rate 1000 --total 50 --key-space 9")).unwrap();
    assert!(report.results[0].disturbed.is_none());
    assert!(figure(&report, 0, Metric::LatencyP99Us) > 0.0);
}

#[test]
fn half_the_closed_loop_s_rate_is_measured_first() {
    let address = serve(Stub::default());
    let report =
        run(&format!("put --half-rate-of 3 --endpoints {address} --clients 8 --total 200 --warmup 0 --json")).unwrap();
    let rate = report.results[0].rate_per_second.unwrap();
    assert!(rate > 0.0 && figure(&report, 0, Metric::DurationSeconds) >= 199.0 / rate);
}

#[test]
fn a_garboard_endpoint_s_stages_are_those_of_the_rounds() {
    let address = serve(Stub { is_garboard: true, ..Stub::default() });
    let report = run(&format!("put --endpoints {address} --total 30 --rounds 2 --warmup 7")).unwrap();
    let stages = &report.results[0].stages;
    assert_eq!((stages.len(), stages[0].stage.as_str(), stages[0].count), (1, "queue", 60));
    assert_eq!((stages[0].mean_us, stages[0].p99_us), (4.0, 5.0));
    assert!(report.to_text().contains("where batches of writes spent their time"));
}

#[test]
fn refused_operations_are_counted_and_the_first_is_told() {
    let stub = Stub { refuse_every: Some(4), ..Stub::default() };
    let address = serve(stub);
    let report = run(&format!("put --endpoints {address} --total 100 --warmup 0")).unwrap();
    assert_eq!(figure(&report, 0, Metric::Errors), 25.0);
    assert!(report.results[0].first_error.as_ref().unwrap().contains("etcdserver: too many requests"));
}

#[test]
fn a_server_that_refuses_everything_is_an_error_and_no_report() {
    let address = serve(Stub { refuse_every: Some(1), ..Stub::default() });
    let error = run(&format!("put --endpoints {address} --total 10 --warmup 0")).unwrap_err();
    assert!(matches!(error, BenchError::AllFailed { total: 10, .. }), "{error:?}");
}

#[test]
fn a_server_that_answers_nothing_is_noticed() {
    let stub = Stub { stall_first: Some(Duration::from_secs(3_600)), ..Stub::default() };
    let address = serve(stub);
    let error = run(&format!("put --endpoints {address} --total 10 --warmup 0 --stall-seconds 1")).unwrap_err();
    assert!(matches!(error, BenchError::Stalled { finished: 0, total: 10, .. }), "{error:?}");
}

#[test]
fn an_endpoint_where_nobody_listens_is_named_with_what_to_do() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = run(&format!("put --endpoints {free}")).unwrap_err();
    let text = error.explain();
    assert!(text.contains(&format!("cannot connect to {free}: ")) && text.contains("--endpoints"), "{text}");
}

#[test]
fn a_port_that_speaks_something_else_is_told_from_one_that_is_closed() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let error = run(&format!("put --endpoints {address}")).unwrap_err();
    assert!(matches!(error, BenchError::Protocol { .. }), "{error:?}");
}

#[test]
fn the_longest_time_without_an_acknowledgement_is_found_whatever_became_of_single_puts() {
    let stall = Duration::from_millis(300);
    let address = serve(Stub { stall_first: Some(stall), refuse_every: Some(10), ..Stub::default() });
    let plan = GapPlan {
        endpoints: vec![Endpoint::parse(&address.to_string()).unwrap()],
        interval: Duration::from_millis(1),
        timeout: Duration::from_secs(5),
        before: Duration::ZERO,
        after: Duration::from_millis(600),
    };
    let (send, receive) = std::sync::mpsc::channel();
    let gap = measure_gap(&plan, move || send.send(()).unwrap()).unwrap();
    receive.try_recv().expect("what was to happen has happened");
    assert!(gap.longest >= stall - Duration::from_millis(50) && gap.longest < Duration::from_millis(600), "{gap:?}");
    assert!(gap.acknowledged > 100, "{gap:?}");
    assert!(gap.failed["etcdserver: too many requests"] >= 10, "{gap:?}");
}

#[test]
fn a_member_is_asked_for_its_status_and_to_hand_over() {
    let stub = Stub::default();
    let endpoint = Endpoint::parse(&serve(stub.clone()).to_string()).unwrap();
    let status = member_status(&endpoint).unwrap();
    assert!(status.leads());
    assert_eq!((status.member_id, status.raft_term, status.raft_applied_index, status.db_size), (7, 3, 9, 4_096));
    let refused = move_leader(&endpoint, 8).unwrap_err();
    assert!(refused.to_string().contains("bad leader transferee"), "{refused}");
    assert_eq!(*stub.asked.lock().unwrap(), ["move 8"]);
}
