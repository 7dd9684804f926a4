//! The checkers take what is right, in situations that a seed met once.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use garboard_replica::request::{Command, KeyRange, Put};
use garboard_replica::watch::{WatchConfig, WatchCreate, WatchHub, WatchResponse};
use garboard_sim::check::watch::StreamChecker;
use garboard_sim::model::Model;
use garboard_sim::node::Node;

const KEY: Bytes = Bytes::from_static(b"key");

/// A member, one watch stream on it, and what checks it.
struct Watched {
    node: Node,
    hub: WatchHub,
    model: Model,
    checker: StreamChecker,
    stream: garboard_replica::watch::StreamId,
}

impl Watched {
    fn new(config: WatchConfig) -> Watched {
        let node = Node::new(1);
        let mut hub = WatchHub::new(config, node.reader().revision());
        let stream = hub.open_stream(node.clock(), std::time::Duration::from_secs(600));
        Watched { node, hub, model: Model::default(), checker: StreamChecker::default(), stream }
    }

    fn put(&mut self) {
        let put = Put {
            key: KEY,
            value: Bytes::from_static(b"a value of some length"),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        let command = Command::Put(put);
        assert_eq!(self.model.execute(&command), self.node.execute(command));
        for batch in std::mem::take(&mut self.node.events) {
            self.hub.handle_events(&batch);
        }
    }

    fn create(&mut self, watch_id: i64) {
        let create = WatchCreate {
            watch_id,
            keys: KeyRange::Point(KEY),
            start_revision: 0,
            progress_notify: false,
            prev_kv: false,
            fragment: true,
            no_put: false,
            no_delete: false,
        };
        let pin = self.node.reader().pin();
        self.checker.create(&self.model, pin.view().revision(), &create);
        self.hub.create(self.node.clock(), self.stream, create, &pin.view()).unwrap();
    }

    fn cancel(&mut self, watch_id: i64) {
        let pin = self.node.reader().pin();
        self.checker.cancel(pin.view().revision(), watch_id);
        self.hub.cancel(self.stream, watch_id, &pin.view()).unwrap();
    }

    /// The next response, which the checker has taken.
    fn next(&mut self) -> Option<WatchResponse> {
        let pin = self.node.reader().pin();
        let response = self.hub.next_response(self.stream, &pin.view()).expect("all pages are there");
        if let Some(response) = &response {
            let taken = self.checker.received(&self.model, pin.view().compacted(), response);
            taken.unwrap_or_else(|violation| panic!("{violation}"));
        }
        response
    }
}

#[test]
fn the_parts_of_a_canceled_watch_are_its_own_when_the_next_watch_of_its_id_is_canceled_too() {
    let mut watched = Watched::new(WatchConfig { fragment_bytes: 200, ..WatchConfig::new(0) });
    watched.create(7);
    (0..6).for_each(|_| watched.put());
    assert!(watched.next().unwrap().created);
    assert!(watched.next().unwrap().fragment);
    watched.cancel(7);
    watched.create(7);
    watched.cancel(7);
    let mut events = 0;
    while let Some(response) = watched.next() {
        events += response.events.len();
    }
    assert!(events > 0, "the rest of the response that had begun to leave follows");
}
