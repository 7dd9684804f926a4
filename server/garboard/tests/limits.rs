//! Bounds that the operator sets: the size of a request, and of the store.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use common::client::{CallError, Client};
use common::{Folder, Launch, eventually};
use garboard_proto::etcdserverpb::AlarmType;

const DEFAULT_MAX_REQUEST_BYTES: usize = 1_536 << 10;
const LARGEST_MAX_REQUEST_BYTES: usize = 32 << 20;
/// What etcd counts of a put beside its value: key, tags, lengths and the raft request's header; at most this.
const ENVELOPE_BYTES_MAX: usize = 100;
const TOO_LARGE: &str = "etcdserver: request is too large";
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
/// gRPC's code for a request that is refused as it is.
const INVALID_ARGUMENT: i32 = 3;
/// gRPC's code for a bound that is reached.
const RESOURCE_EXHAUSTED: i32 = 8;

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn check_read_back(client: &Client, key: &str, len: usize) {
    // Not compared by `assert_eq!`, which would print megabytes.
    assert!(client.get(key).unwrap().unwrap().value == value(len), "{key} reads back as it was written");
}

fn too_large() -> CallError {
    CallError::Status { code: INVALID_ARGUMENT, message: TOO_LARGE.to_owned() }
}

#[test]
fn requests_up_to_the_default_limit_are_taken_and_one_byte_more_is_refused() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    let (mut fits, mut refused) = (DEFAULT_MAX_REQUEST_BYTES - ENVELOPE_BYTES_MAX, DEFAULT_MAX_REQUEST_BYTES);
    check_put(&client, fits);
    assert_eq!(client.put("large", value(refused)), Err(too_large()));
    while refused - fits > 1 {
        let len = fits.midpoint(refused);
        match client.put("large", value(len)) {
            Ok(_) => fits = len,
            Err(error) => {
                assert_eq!(error, too_large());
                refused = len;
            }
        }
    }
    check_read_back(&client, "large", fits);
    // Beyond the message's own limit the transport refuses.
    let error = client.put("large", value(DEFAULT_MAX_REQUEST_BYTES + (600 << 10))).unwrap_err();
    assert!(matches!(error, CallError::Status { code: RESOURCE_EXHAUSTED, .. }), "{error:?}");
    check_read_back(&client, "large", fits);
}

fn check_put(client: &Client, len: usize) {
    client.put("large", value(len)).unwrap();
    check_read_back(client, "large", len);
}

#[test]
fn requests_of_32_mib_work_all_the_way_and_survive_kill_9() {
    let folder = Folder::new();
    let flag = format!("--max-request-bytes={LARGEST_MAX_REQUEST_BYTES}");
    let mut server = Launch::new(&folder.data()).arg(&flag).start();
    let client = server.client();
    let fits = LARGEST_MAX_REQUEST_BYTES - ENVELOPE_BYTES_MAX;
    check_put(&client, fits);
    assert_eq!(client.put("large", value(LARGEST_MAX_REQUEST_BYTES)), Err(too_large()));
    client.put("small", "value").unwrap();
    server.kill();
    let server = Launch::new(&folder.data()).arg(&flag).start();
    check_read_back(&server.client(), "large", fits);
    assert_eq!(server.client().revision().unwrap(), 3);
}

#[test]
fn a_larger_limit_than_32_mib_is_refused() {
    let folder = Folder::new();
    let said = Launch::new(&folder.data()).arg("--max-request-bytes=33554433").refused();
    assert!(said.contains("--max-request-bytes") && said.contains("33554432"), "{said}");
}

#[test]
fn a_reached_quota_refuses_growth_until_space_is_made_and_the_alarm_disarmed() {
    let folder = Folder::new();
    let mut server = Launch::new(&folder.data()).arg("--quota-backend-bytes=8388608").start();
    let client = server.client();
    let mut count = 0;
    let refused = loop {
        match client.put(format!("key/{count}"), value(500_000)) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 100, "the quota holds");
    };
    let no_space = CallError::Status { code: RESOURCE_EXHAUSTED, message: NO_SPACE.to_owned() };
    assert_eq!(refused, no_space);
    assert!(count >= 8, "it refused after {count}");
    let alarms = client.alarms().unwrap();
    assert_eq!(alarms.len(), 1);
    assert_eq!(alarms[0].alarm(), AlarmType::Nospace);
    assert_eq!(client.put("small", "v").unwrap_err(), no_space);

    // What does not grow the store goes on.
    check_read_back(&client, "key/0", 500_000);
    for number in 0..count {
        assert_eq!(client.delete(format!("key/{number}")).unwrap(), 1);
    }
    let revision = client.revision().unwrap();
    client.compact(revision).unwrap();
    eventually("the space is free again", || (client.status().unwrap().db_size_in_use < 1 << 20).then_some(()));

    // As with etcd the alarm stays until it is disarmed, also over a restart.
    assert_eq!(client.put("small", "v").unwrap_err(), no_space);
    server.kill();
    let server = Launch::new(&folder.data()).arg("--quota-backend-bytes=8388608").start();
    let client = server.client();
    assert_eq!(client.put("small", "v").unwrap_err(), no_space);
    assert_eq!(client.disarm(client.alarms().unwrap()[0]).unwrap().len(), 1);
    assert_eq!(client.alarms().unwrap(), []);
    client.put("small", "v").unwrap();
    assert_eq!(client.revision().unwrap(), revision + 1);
}
