//! What links promise, over a simulated network.
//!
//! `LINKS_SEEDS=FIRST..LAST` replays a seed that failed, or runs many.

mod net;

use core::time::Duration;

use bytes::Bytes;
use garboard_transport::Lane;
use garboard_transport::link::{CloseCode, DownReason, LinkEvent, Refusal, SendError};
use net::{Net, frame, ms, number};

fn three(seed: u64) -> Net {
    let mut net = Net::new(seed);
    for id in 1..=3 {
        net.add(id);
    }
    net.meet_all();
    net
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("LINKS_SEEDS") else { return 1..41 };
    let bounds = text.split_once("..").and_then(|(first, last)| Some(first.parse().ok()?..last.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("LINKS_SEEDS is {text:?} and not FIRST..LAST"))
}

#[test]
fn three_members_link_up_within_a_few_round_trips() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(100));
        assert!(net.all_up(), "seed {seed}");
    }
}

#[test]
fn frames_come_once_and_in_order_on_each_lane_though_datagrams_are_lost_and_reordered() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(200));
        // Two bulk connections that are dialed at once cross, and what had been given to the one that goes is lost.
        net.send(1, 2, Lane::Bulk, frame(0, 10)).unwrap();
        net.run_for(ms(50));
        net.clear_received();
        (net.loss_percent, net.jitter) = (5, ms(3));
        for count in 0..200 {
            for lane in [Lane::Control, Lane::Log, Lane::Bulk] {
                net.send(1, 2, lane, frame(count, 100)).unwrap();
                net.send(2, 1, lane, frame(count, 3_000)).unwrap();
            }
            net.run_for(ms(1));
        }
        net.loss_percent = 0;
        net.run_for(ms(2_000));
        for (from, to) in [(1, 2), (2, 1)] {
            for lane in [Lane::Control, Lane::Log, Lane::Bulk] {
                let numbers: Vec<u64> = net.received(to, from, lane).iter().map(|frame| number(frame)).collect();
                assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "seed {seed}: {lane:?} from {from}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut net = three(seed);
        (net.loss_percent, net.jitter) = (10, ms(5));
        for count in 0..100 {
            let _ = net.send(1 + count % 3, 1 + (count + 1) % 3, Lane::Log, frame(count, 5_000));
            net.run_for(ms(20));
            if count == 50 {
                net.restart(2);
            }
        }
        net.trace()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_full_log_and_a_full_bulk_lane_hold_up_no_heartbeat() {
    let mut net = three(3);
    net.run_for(ms(200));
    // A megabyte a second: what is queued takes half a minute.
    net.bytes_per_second = Some(1_000_000);
    let fill = |net: &mut Net, lane| while net.send(1, 2, lane, frame(0, 256 * 1024)).is_ok() {};
    fill(&mut net, Lane::Log);
    fill(&mut net, Lane::Bulk);
    assert_eq!(net.send(1, 2, Lane::Log, frame(0, 256 * 1024)), Err(SendError::Full));
    for count in 0..50 {
        net.run_for(ms(100));
        let sent_at = net.now;
        net.send(1, 2, Lane::Control, frame(count, 64)).unwrap();
        net.run_until(ms(1_000), |net| net.received(2, 1, Lane::Control).len() as u64 > count);
        let took = net.now - sent_at;
        // What stands before it is what the congestion windows of both connections hold on this slow path.
        assert!(took < ms(700), "heartbeat {count} took {took:?}");
    }
    assert!(net.is_up(1, 2) && net.is_up(2, 1));
    assert!(net.links(1).stats(2).dropped_log > 0, "what was over the bound is counted");
}

#[test]
fn an_entry_larger_than_the_queue_gets_through() {
    let mut net = three(4);
    net.run_for(ms(200));
    net.send(1, 2, Lane::Log, frame(9, 40 * 1024 * 1024)).unwrap();
    net.run_for(ms(5_000));
    assert_eq!(net.received(2, 1, Lane::Log).len(), 1);
}

#[test]
fn a_peer_that_falls_silent_is_noticed_and_met_again() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(200));
        net.cut(1, 2);
        net.cut(2, 1);
        net.run_for(ms(2_600));
        assert!(!net.is_up(1, 2) && !net.is_up(2, 1), "seed {seed}");
        assert!(net.is_up(1, 3) && net.is_up(2, 3), "seed {seed}: others are not touched by it");
        assert!(net.downs(1, 2).contains(&DownReason::Silent), "seed {seed}");
        net.heal();
        net.run_for(ms(4_000));
        assert!(net.all_up(), "seed {seed}");
    }
}

#[test]
fn a_cut_of_one_direction_takes_the_link_down_on_both_sides_and_heals() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(200));
        net.cut(1, 2);
        net.run_for(ms(5_000));
        assert!(!net.is_up(1, 2) && !net.is_up(2, 1), "seed {seed}");
        net.heal();
        net.run_for(ms(4_000));
        assert!(net.all_up(), "seed {seed}");
        net.send(1, 2, Lane::Log, frame(5, 10)).unwrap();
        net.send(2, 1, Lane::Log, frame(6, 10)).unwrap();
        net.run_for(ms(100));
        assert_eq!(net.received(2, 1, Lane::Log).len() + net.received(1, 2, Lane::Log).len(), 2, "seed {seed}");
    }
}

#[test]
fn a_restarted_member_is_met_at_once() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(200));
        for restarted in [1, 2, 3] {
            net.restart(restarted);
            net.run_for(ms(300));
            assert!(net.all_up(), "seed {seed}: member {restarted} restarted");
            for other in (1..=3).filter(|id| *id != restarted) {
                assert!(net.downs(other, restarted).contains(&DownReason::Restarted), "seed {seed}");
            }
        }
    }
}

#[test]
fn a_member_that_stops_says_so() {
    let mut net = three(5);
    net.run_for(ms(200));
    net.stop(2);
    net.run_for(ms(20));
    assert_eq!(net.downs(1, 2), [DownReason::Stopped]);
    assert!(net.downs(1, 2)[0].process_ended());
    assert_eq!(net.send(1, 2, Lane::Control, frame(0, 1)), Err(SendError::Down));
}

#[test]
fn a_member_that_moves_is_found_at_its_new_address() {
    for seed in seeds() {
        let mut net = three(seed);
        net.run_for(ms(200));
        net.move_to(2, "10.0.1.2:7777".parse().unwrap());
        net.run_for(ms(8_000));
        assert!(net.all_up(), "seed {seed}");
    }
}

#[test]
fn an_address_that_does_not_answer_gives_way_to_the_next() {
    let mut net = Net::new(6);
    net.add(1);
    net.add(2);
    net.also_at(2, "10.9.9.9:1".parse().unwrap());
    net.meet(1, &[2], &[]);
    net.run_for(ms(1_000));
    assert!(net.is_up(1, 2) && net.is_up(2, 1), "2 knows nobody and is dialed");
}

#[test]
fn another_cluster_is_refused_and_both_sides_say_why() {
    let mut net = Net::new(7);
    net.add(1);
    net.add_of_cluster(2, 0xbad);
    net.meet_all();
    net.run_for(ms(500));
    assert!(!net.is_up(1, 2) && !net.is_up(2, 1));
    assert!(net.refusals(1).iter().any(|refusal| matches!(refusal, Refusal::Cluster { theirs: 0xbad, .. })));
    assert!(net.refused_by(1).contains(&CloseCode::Cluster) || net.refused_by(2).contains(&CloseCode::Cluster));
}

#[test]
fn another_member_at_a_peers_address_is_refused() {
    let mut net = Net::new(8);
    net.add(1);
    net.add(3);
    net.meet(1, &[2], &[]);
    net.alias(2, 3);
    net.run_for(ms(500));
    assert!(!net.is_up(1, 2));
    assert!(net.refusals(3).contains(&Refusal::Member { wanted: 2, found: 3 }));
    assert!(net.refused_by(1).contains(&CloseCode::Member));
}

#[test]
fn a_member_that_dials_itself_is_told() {
    let mut net = Net::new(9);
    net.add(1);
    net.meet(1, &[2], &[]);
    net.alias(2, 1);
    net.run_for(ms(500));
    assert!(net.refusals(1).contains(&Refusal::Itself));
}

#[test]
fn a_removed_member_is_cut_off_and_told() {
    let mut net = three(10);
    net.run_for(ms(200));
    net.meet(1, &[2], &[3]);
    net.meet(2, &[1], &[3]);
    net.run_for(ms(3_000));
    assert!(net.is_up(1, 2) && !net.is_up(1, 3) && !net.is_up(3, 1));
    assert!(net.refused_by(3).contains(&CloseCode::Removed));
}

#[test]
fn another_key_than_at_first_contact_is_refused() {
    let mut net = three(11);
    net.run_for(ms(200));
    net.restart_with_key(2, [0xee; 32]);
    net.run_for(ms(3_000));
    assert!(!net.is_up(1, 2) && !net.is_up(3, 2) && net.is_up(1, 3));
    assert!(net.refusals(1).contains(&Refusal::Key));
    assert!(net.refused_by(2).contains(&CloseCode::Key));
}

#[test]
fn a_member_that_is_not_known_here_yet_is_heard() {
    let mut net = three(12);
    net.run_for(ms(200));
    net.add(4);
    net.meet(4, &[1, 2, 3], &[]);
    net.run_for(ms(200));
    net.send(4, 1, Lane::Log, frame(1, 10)).unwrap();
    net.run_for(ms(50));
    assert_eq!(net.received(1, 4, Lane::Log).len(), 1);
    net.send(1, 4, Lane::Log, frame(2, 10)).unwrap();
    net.run_for(ms(50));
    assert_eq!(net.received(4, 1, Lane::Log).len(), 1, "and answered");
}

#[test]
fn strangers_are_bounded() {
    let mut net = Net::new(13);
    net.add(1);
    for id in 2..20 {
        net.add(id);
        net.meet(id, &[1], &[]);
    }
    net.run_for(ms(1_000));
    let up = (2..20).filter(|id| net.is_up(1, *id)).count();
    assert_eq!(up, garboard_transport::link::limits::STRANGERS_MAX);
    assert!(net.refusals(1).contains(&Refusal::Strangers));
}

#[test]
fn what_is_no_frame_ends_the_connection_and_nothing_else() {
    let mut net = three(14);
    net.run_for(ms(200));
    net.send(1, 2, Lane::Log, Bytes::from_static(b"this is no frame at all")).unwrap();
    net.run_for(ms(500));
    assert!(matches!(net.refusals(2)[0], Refusal::Frame(_)));
    assert!(net.all_up(), "they have met again");
}

#[test]
fn a_probe_is_answered_by_a_peer_that_lives_and_by_no_other() {
    let mut net = three(15);
    net.run_for(ms(200));
    net.probe(1, 2, ms(60));
    net.run_for(ms(30));
    assert!(matches!(net.take_events(1).last(), Some(LinkEvent::ProbeAnswered { peer: 2 })));
    net.cut(2, 1);
    net.probe(1, 2, ms(60));
    net.run_for(ms(59));
    assert!(net.take_events(1).is_empty());
    net.run_for(ms(2));
    assert!(matches!(net.take_events(1).last(), Some(LinkEvent::ProbeSilent { peer: 2 })));
}

#[test]
fn an_idle_pair_sends_little() {
    let mut net = three(16);
    net.run_for(ms(1_000));
    let before = net.sent_datagrams;
    net.run_for(Duration::from_secs(10));
    // Three pairs, each side asking twice a second and answering.
    assert!(net.sent_datagrams - before < 3 * 2 * 2 * 10 * 3, "{}", net.sent_datagrams - before);
}
