//! How many conversations are looked at to find room, or that there is none: as many as the decoder holds at most, however
//! many are known.

use super::support::*;
use crate::config::Config;
use crate::router::{Router, Turn};

/// Conversations that are known and hold nothing.
const KNOWN: u128 = 2_000;

/// One decoder of 100 blocks, 80 for newcomers, and many conversations that were there once.
fn well_known(config: Config) -> Router {
    let router = fleet(config, 0, &[100]);
    for number in 0..KNOWN {
        run(&router, 1_000 + number, 1);
        assert!(router.relocate(key(1_000 + number), at(2)));
    }
    router
}

/// Turns of as many conversations, of 10 blocks each.
fn running(router: &Router, turns: u128) -> Vec<Turn> {
    (0..turns)
        .map(|number| ask(router, number, 10).expect("room"))
        .collect()
}

/// Entries of the table and of the decoder's list that were looked at while `act` ran.
fn looks(router: &Router, act: impl FnOnce()) -> u64 {
    let engine = router.engine();
    let decoder = engine.fleet.all().next().expect("one");
    let looked = || engine.table.visited.get() + decoder.longest_idle.looked.get();
    let before = looked();
    act();
    looked() - before
}

#[test]
fn a_newcomer_is_refused_without_a_walk() {
    let router = well_known(Config::default());
    let turns = running(&router, 8);
    let refused = || assert!(ask(&router, 100, 10).is_err(), "80 of 80");
    refused();
    for _ in 0..10 {
        assert!(looks(&router, refused) <= 8, "those that run");
    }
    turns.into_iter().for_each(finish);
}

#[test]
fn a_turn_that_grows_into_a_full_decoder_runs_without_a_walk() {
    let router = well_known(Config::default());
    let mut turns = running(&router, 8);
    let mut grown = |number| turns.push(ask(&router, number, 40).expect("its engine finds room"));
    grown(0);
    for number in 1..8 {
        assert!(looks(&router, || grown(number)) <= 16, "those that run");
    }
    turns.into_iter().for_each(finish);
    assert_eq!(booked(&router, 0), 100);
}

#[test]
fn the_head_of_the_line_is_served_without_a_walk() {
    let router = well_known(Config::default());
    let mut turns = running(&router, 8);
    let head = wait(&router, 100, 30);
    for _ in 0..10 {
        let last = turns.pop().expect("eight");
        let served = || {
            finish(last);
            assert!(granted(&head).is_none(), "one that is idle holds 10");
        };
        assert!(looks(&router, served) <= 16, "those that are here, twice");
        turns.push(ask(&router, 7, 10).expect("it has its room"));
    }
    for turn in turns {
        finish(turn);
    }
    finish(granted(&head).expect("three are idle"));
}

#[test]
fn who_takes_room_from_idle_ones_walks_nothing() {
    for config in [
        Config::default(),
        Config {
            tail_waits: true,
            ..Config::default()
        },
    ] {
        let router = well_known(config);
        for number in 0..9 {
            run(&router, number, 10);
        }
        let newcomers = || (100..400).for_each(|number| run(&router, number, 10));
        // Two to clean up, one that it leaves without anything, one that was used since, one that it takes from.
        let most = 300 * 5;
        let looks = looks(&router, newcomers);
        assert!(looks <= most, "{looks} looks");
    }
}
