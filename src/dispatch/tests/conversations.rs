//! Which requests belong together.

use super::*;

const USER: &str = r#"{"role":"user","content":"task"}"#;
const REPLY: &str = r#"{"role":"assistant","content":"hello"}"#;
const TOOL: &str = r#"{"role":"tool","content":"output"}"#;

fn history(messages: &[&str]) -> String {
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(", "))
}

fn handoffs(world: &World) -> usize {
    world.events(|event| matches!(event, Event::HandedOver { handoff: true, .. }))
}

#[test]
fn a_client_without_a_header_is_recognised_by_its_history() {
    let world = world(1, 4);
    let mut first = world.open(&[], &history(&[USER]));
    let home = first.succeed();
    let mut second = world.open(&[], &history(&[USER, REPLY, TOOL]));
    assert_eq!(second.succeed(), home);
    let mut third = world.open(&[], &history(&[USER, REPLY, TOOL, REPLY, USER]));
    assert_eq!(third.succeed(), home);
    assert_eq!(first.dispatch.conversation(), third.dispatch.conversation());
    assert_eq!((handoffs(&world), world.conversations()), (1, 1));
    let mut other = world.open(&[], &history(&[USER]));
    other.succeed();
    assert_ne!(
        other.dispatch.conversation(),
        first.dispatch.conversation(),
        "no assistant message: a new one"
    );
    world.settled();
}

#[test]
fn two_conversations_that_began_alike_stay_two() {
    let world = world(1, 4);
    let mut a = world.open(&[], &history(&[USER]));
    let mut b = world.open(&[], &history(&[USER]));
    a.succeed();
    b.succeed();
    let other = r#"{"role":"assistant","content":"other"}"#;
    let mut next_a = world.open(&[], &history(&[USER, REPLY, TOOL]));
    next_a.succeed();
    let mut next_b = world.open(&[], &history(&[USER, other, TOOL]));
    next_b.succeed();
    assert_ne!(
        next_a.dispatch.conversation(),
        next_b.dispatch.conversation()
    );
    assert_eq!(
        (world.conversations(), handoffs(&world)),
        (2, 2),
        "no third one was begun"
    );
    world.settled();
}

#[test]
fn tenants_with_the_same_id_or_history_never_meet() {
    let world = world(1, 2);
    for headers in [&TASK[..], &[]] {
        let conversation = |key| {
            let headers: Vec<_> = headers
                .iter()
                .copied()
                .chain([("authorization", key)])
                .collect();
            world.open(&headers, &history(&[USER])).succeed();
            let mut turn = world.open(&headers, &history(&[USER, REPLY, TOOL]));
            turn.succeed();
            turn.dispatch.conversation().unwrap()
        };
        assert_ne!(conversation("Bearer sk-a"), conversation("Bearer sk-b"));
    }
    assert_eq!(
        (world.conversations(), handoffs(&world)),
        (4, 4),
        "one each, by id and by history"
    );
    world.settled();
}

#[test]
fn requests_of_one_conversation_at_once_share_one_handoff() {
    let world = world(2, 2);
    let mut first = world.open(&TASK, &chat(""));
    let Action::Call(_) = first.start() else {
        panic!("it places")
    };
    let mut others: Vec<_> = (0..4).map(|_| world.open(&TASK, &chat(""))).collect();
    for other in &mut others {
        other.start().wait();
    }
    let Action::Call(home) = first.answered(200, PREFILLED) else {
        panic!("the decoder is asked")
    };
    first.answered(200, ANSWER).reply(200);
    for other in &mut others {
        let sent = other.admitted().call(&home.name);
        assert_eq!(body_of(&sent), chat(""), "no handoff of its own");
    }
    for other in &mut others {
        other.answered(200, ANSWER).reply(200);
    }
    assert_eq!((handoffs(&world), world.conversations()), (1, 1));
    world.settled();
}

#[test]
fn a_follower_places_when_the_first_fails() {
    let world = world(1, 2);
    let mut first = world.open(&TASK, &chat(""));
    first.start().call("p0");
    let mut second = world.open(&TASK, &chat(""));
    second.start().wait();
    first.gone();
    second.admitted().call("p0");
    let (Action::Call(_) | Action::Stream(_)) = second.answered(200, PREFILLED) else {
        panic!("a decoder is asked")
    };
    second.answered(200, ANSWER).reply(200);
    assert_eq!(handoffs(&world), 1);
    world.settled();
}

#[test]
fn a_waiting_request_is_woken() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    struct Bell(AtomicUsize);
    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let world = world(1, 1);
    let mut first = world.open(&TASK, &chat(""));
    first.start().call("p0");
    let mut second = world.open(&TASK, &chat(""));
    second.start().wait();
    let bell = Arc::new(Bell(AtomicUsize::new(0)));
    second.dispatch.set_waker(bell.clone().into());
    assert_eq!(bell.0.load(Ordering::Relaxed), 0);
    first.answered(200, PREFILLED).call("d0");
    first.answered(200, ANSWER).reply(200);
    assert_eq!(bell.0.load(Ordering::Relaxed), 1, "when the KV is there");
    second.admitted().call("d0");
    second.gone();
    world.settled();
}

#[test]
fn a_conversation_is_found_by_its_name_and_by_its_key() {
    let world = world(0, 1);
    let tenant = [("authorization", "sk-a"), ("x-conversation-id", "task-42")];
    let mut turn = world.open(&tenant, &chat(""));
    turn.succeed();
    let key = turn.dispatch.conversation().unwrap();
    let headers = list(&tenant[..1]);
    let told = turn.dispatch.handle().unwrap().to_string();
    let locate = |headers: &[Header], id: &str| {
        let located = world.dispatcher.locate(headers, id.as_bytes());
        located.map(|located| located.key)
    };
    assert_eq!(locate(&headers, "task-42"), Some(key));
    assert_eq!(locate(&headers, &told), Some(key));
    assert_eq!(locate(&[], "task-42"), None, "another tenant's name");
    assert!(world.router.close(key, world.now));
    assert_eq!(locate(&headers, "task-42"), None);
    let key_of = |headers: &[Header]| world.dispatcher.key_of(headers, b"task-42").to_string();
    assert_eq!(key_of(&headers), told, "the log still has it");
    assert_ne!(key_of(&[]), told, "what another tenant calls so");
    world.untouched();
}

#[test]
fn without_the_fingerprint_each_nameless_request_stands_alone() {
    let config = DispatchConfig {
        fingerprint: false,
        ..DispatchConfig::default()
    };
    let world = World::new(1, 1, config, Config::default());
    world.open(&[], &history(&[USER])).succeed();
    world.open(&[], &history(&[USER, REPLY, TOOL])).succeed();
    assert_eq!(handoffs(&world), 2);
    world.untouched();
}

#[test]
fn a_key_told_to_one_tenant_names_nothing_for_another() {
    let world = world(1, 2);
    let ours = [("authorization", "Bearer ours")];
    let mut turn = world.open(&ours, &history(&[USER]));
    turn.succeed();
    let told = turn.dispatch.handle().unwrap().to_string();
    let locate =
        |headers: &[(&str, &str)], id: &str| world.dispatcher.locate(&list(headers), id.as_bytes());
    let found = locate(&ours, &told).expect("told to this tenant");
    assert_eq!(found.view.key.to_string(), told);
    assert_eq!(Some(found.key), turn.dispatch.conversation());
    assert!(locate(&[("authorization", "Bearer theirs")], &told).is_none());
    assert!(locate(&[], &told).is_none());
    assert!(
        locate(&ours, &found.key.to_string()).is_none(),
        "the router's own key is told to nobody"
    );
}
