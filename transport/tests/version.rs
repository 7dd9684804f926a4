//! A peer of another version of the protocol, which speaks QUIC as this one does and says another hello.

#![allow(clippy::unwrap_used, reason = "what fails fails the test")]

use core::time::Duration;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use garboard_transport::link::{Arrival, LinkEvent, Links, LinksConfig, null};
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
};

/// The magic, version 9, and the length: they stand there in every version.
const HELLO: [u8; 8] = [b'G', b'B', b'P', b'H', 9, 0, 76, 0];
const STEP: Duration = Duration::from_millis(1);

/// What dials.
struct Stranger {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    address: SocketAddr,
    closed: Option<ConnectionError>,
}

impl Stranger {
    fn dial(epoch: Instant, to: SocketAddr) -> Stranger {
        let security = null::security([2; 32], 2);
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::new(security.reset_key)), None, true, Some([2; 32]));
        let (handle, connection) = endpoint.connect(epoch, ClientConfig::new(security.client), to, "peer").unwrap();
        Stranger { endpoint, handle, connection, address: "10.0.0.2:4000".parse().unwrap(), closed: None }
    }

    fn receive(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let event = self.endpoint.handle(now, from, None, None, BytesMut::from(datagram), &mut Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    /// Says hello once it can, and gives the datagrams to send.
    fn step(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.connection.poll_timeout().is_some_and(|due| due <= now) {
            self.connection.handle_timeout(now);
        }
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => {
                    let stream = self.connection.streams().open(Dir::Uni).unwrap();
                    assert_eq!(self.connection.send_stream(stream).write(&HELLO), Ok(HELLO.len()));
                }
                Event::ConnectionLost { reason } => self.closed = Some(reason),
                _ => {}
            }
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        let mut datagrams = Vec::new();
        let mut buffer = Vec::new();
        while self.connection.poll_transmit(now, 1, &mut buffer).is_some() {
            datagrams.push(std::mem::take(&mut buffer));
        }
        datagrams
    }
}

#[test]
fn a_peer_of_another_version_is_refused_and_both_hear_which_one_the_other_speaks() {
    #[expect(clippy::disallowed_methods, reason = "an instant can't be made otherwise; from here on time is simulated")]
    let epoch = Instant::now();
    let address: SocketAddr = "10.0.0.1:2380".parse().unwrap();
    let mut links = Links::new(LinksConfig::new(1, 0xc1, epoch, null::security([1; 32], 1)));
    let mut stranger = Stranger::dial(epoch, address);
    let text = "it speaks version 9 of the peer protocol, this member speaks version 1";
    let mut refused = false;
    let mut now = Duration::ZERO;
    while stranger.closed.is_none() {
        now += STEP;
        assert!(now < Duration::from_secs(1), "it is told at once");
        for datagram in stranger.step(epoch + now) {
            let arrival = Arrival { socket: 0, from: stranger.address, local_ip: None, ecn: None };
            links.handle_datagram(now, arrival, BytesMut::from(&datagram[..]));
        }
        if links.poll_timeout().is_some_and(|due| due <= now) {
            links.handle_timeout(now);
        }
        while let Some(event) = links.poll_event() {
            refused |= matches!(event, LinkEvent::Refused { peer: None, address, refusal } if address == stranger.address && refusal.to_string() == text);
        }
        let mut buffer = Vec::new();
        while let Some(transmit) = links.poll_transmit(now, &mut buffer) {
            for datagram in buffer.chunks(transmit.segment_bytes.unwrap_or(transmit.bytes)) {
                stranger.receive(epoch + now, address, datagram);
            }
            buffer.clear();
        }
    }
    assert!(refused);
    let Some(ConnectionError::ApplicationClosed(close)) = stranger.closed else { panic!("{:?}", stranger.closed) };
    assert_eq!((u64::from(close.error_code), &close.reason[..]), (5, text.as_bytes()));
}
