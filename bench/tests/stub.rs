//! The load against a server in this process that answers as etcd would.

#![allow(clippy::unwrap_used, reason = "a stub that cannot do its part fails the test")]
#![allow(clippy::disallowed_methods, reason = "the stub is a server: it has threads and clocks")]

mod proto {
    #![allow(missing_docs, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/stub/etcdserverpb.rs"));

    pub mod health {
        include!(concat!(env!("OUT_DIR"), "/stub/grpc.health.v1.rs"));
    }
}

use bytes::Bytes;
use clap::Parser;
use garboard_bench::{BenchArgs, BenchError, Metric, Report, Task, measure};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use proto::health::health_server::{Health, HealthServer};
use proto::health::{HealthCheckRequest, HealthCheckResponse};
use proto::kv_server::{Kv, KvServer};
use proto::watch_server::{Watch, WatchServer};
use proto::{Event, KeyValue, PutRequest, PutResponse, RangeRequest, RangeResponse, WatchRequest, WatchResponse};
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

/// A store of keys in memory, with faults that a test chooses.
#[derive(Clone, Default)]
struct Stub {
    keys: Arc<Mutex<BTreeMap<Bytes, Bytes>>>,
    watchers: Arc<Mutex<Vec<WatchSender>>>,
    put_count: Arc<Mutex<u64>>,
    check_count: Arc<Mutex<u64>>,
    /// Every n-th put is refused.
    refuse_every: Option<u64>,
    /// The first put takes so long, and all others wait for it, as behind a disk that stalls.
    stall_first: Option<Duration>,
    disk: Arc<tokio::sync::Mutex<bool>>,
}

#[tonic::async_trait]
impl Kv for Stub {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        let keys = self.keys.lock().unwrap();
        let found: Vec<Bytes> = if request.range_end.is_empty() {
            keys.get(&request.key).cloned().into_iter().collect()
        } else {
            keys.range(request.key..request.range_end).map(|(_, value)| value.clone()).collect()
        };
        let count = i64::try_from(found.len()).unwrap();
        let limit = if request.limit == 0 { usize::MAX } else { usize::try_from(request.limit).unwrap() };
        let kvs = if request.count_only { Vec::new() } else { found.into_iter().take(limit).collect() };
        Ok(Response::new(RangeResponse { count, kvs, ..RangeResponse::default() }))
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
        if self.refuse_every.is_some_and(|n| number % n == 0) {
            return Err(Status::resource_exhausted("etcdserver: too many requests"));
        }
        self.keys.lock().unwrap().insert(key.clone(), value.clone());
        let kv = KeyValue { key, value, mod_revision: i64::try_from(number).unwrap() };
        let response = WatchResponse { events: vec![Event { kv: Some(kv) }], ..WatchResponse::default() };
        self.watchers.lock().unwrap().retain(|watcher| watcher.send(Ok(response.clone())).is_ok());
        Ok(Response::new(PutResponse::default()))
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
            while let Some(Ok(_)) = requests.next().await {
                let created = WatchResponse { created: true, ..WatchResponse::default() };
                if sender.send(Ok(created)).is_ok() {
                    stub.watchers.lock().unwrap().push(sender.clone());
                }
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
                let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (mut kv, mut watch, mut health) = (kv.clone(), watch.clone(), health.clone());
                    async move {
                        match request.uri().path().split('/').nth(1) {
                            Some("etcdserverpb.Watch") => tower::Service::call(&mut watch, request).await,
                            Some("grpc.health.v1.Health") => tower::Service::call(&mut health, request).await,
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
