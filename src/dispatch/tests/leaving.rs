//! A client that leaves, in every state.

use super::*;

/// Steps until the client leaves; each gives the next state.
fn steps(turn: &mut Client<'_>, count: usize) {
    let steps: [fn(&mut Client<'_>); 5] = [
        |turn| drop(turn.start().call("p0")),
        |turn| drop(turn.answered(200, PREFILLED).stream("d0")),
        |turn| turn.listen(),
        |turn| drop(turn.chunk(WORD)),
        |turn| drop(turn.chunk(DONE)),
    ];
    steps[..count].iter().for_each(|step| step(turn));
}

#[test]
fn a_client_that_leaves_gives_back_what_its_turn_took() {
    for count in 0..=5 {
        let world = world(1, 1);
        let mut turn = world.open(&TASK, &streamed());
        steps(&mut turn, count);
        turn.gone();
        world.settled();
        if count <= 3 {
            world.untouched();
        }
        assert_eq!(turn.end(), "", "nothing follows");
        turn.gone();
        world.settled();
    }
}

#[test]
fn a_dispatch_that_is_dropped_gives_back_what_its_turn_took() {
    for count in 0..=5 {
        let world = world(1, 1);
        let mut turn = world.open(&TASK, &streamed());
        steps(&mut turn, count);
        drop(turn);
        world.settled();
        if count <= 3 {
            world.untouched();
        }
    }
}

#[test]
fn a_client_that_leaves_the_line_makes_room_for_the_next() {
    let world = world(0, 1);
    let large = chat(&format!(r#","x":"{}""#, "a".repeat(4_900)));
    let mut first = world.open(&TASK, &large);
    first.start().call("d0");
    let mut second = world.open(&[("x-session-id", "b")], &large);
    second.start().wait();
    let mut third = world.open(&[("x-session-id", "c")], &large);
    third.start().wait();
    second.gone();
    first.gone();
    third.admitted().call("d0");
    third.gone();
    world.untouched();
}

#[test]
fn a_pinned_turn_whose_client_leaves_keeps_the_pin() {
    let world = world(1, 2);
    let home = world.open(&TASK, &chat("")).succeed();
    let mut turn = world.open(&TASK, &streamed());
    turn.start().stream(&home);
    turn.listen();
    turn.chunk(WORD);
    turn.gone();
    assert_eq!(world.booked(), 4, "the growth is returned");
    assert_eq!(world.open(&TASK, &chat("")).succeed(), home);
    world.settled();
}
