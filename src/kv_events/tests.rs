use proptest::prelude::*;

use super::*;

/// `[1.5, events, 0]`, with the encoded events put in.
fn batch(events: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0];
    bytes.push(0x90 | u8::try_from(events.len()).expect("few"));
    bytes.extend(events.concat());
    bytes.push(0);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("short");
    [&[0xd9, length], text.as_bytes()].concat()
}

/// A map of encoded values by name, `type` first.
fn event(kind: &str, members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0x80 | u8::try_from(members.len() + 1).expect("few")];
    bytes.extend([text("type"), text(kind)].concat());
    for (name, value) in members {
        bytes.extend([text(name), value.clone()].concat());
    }
    bytes
}

const KEY: &str = "000000000000000000000000000000ff";

#[test]
fn what_vllm_publishes_is_read() {
    // A number of 64 bits, and 32 bytes of a digest that begins with 7.
    let digest = [vec![0xc4, 32, 0, 0, 0, 0, 0, 0, 0, 7], vec![9; 24]].concat();
    let number = [0xcf, 0, 0, 0, 0, 0, 0, 1, 0].to_vec();
    let stored = event(
        "BlockStored",
        &[
            (
                "block_hashes",
                [vec![0x92], number.clone(), digest].concat(),
            ),
            ("parent_block_hash", vec![0xc0]),
            ("token_ids", vec![0x93, 1, 0xcd, 4, 0, 0xd1, 0xff, 0xff]),
            ("block_size", vec![16]),
            ("medium", text("GPU")),
            ("extra_keys", vec![0x91, 0x92, 0xc0, 0x81, 1, 0xc3]),
            ("session_id", text(KEY)),
        ],
    );
    let removed = event(
        "BlockRemoved",
        &[("block_hashes", [vec![0x91], number].concat())],
    );
    let cleared = event("AllBlocksCleared", &[]);
    let events = decode(&batch(&[&stored, &removed, &cleared])).expect("well formed");
    assert_eq!(
        events,
        [
            KvEvent::Stored {
                blocks: vec![256, 7],
                session: Some(ConversationKey(255)),
            },
            KvEvent::Removed { blocks: vec![256] },
            KvEvent::Cleared,
        ]
    );
}

#[test]
fn what_is_not_in_the_accelerators_memory_or_not_known_is_left_out() {
    let hashes = ("block_hashes", vec![0x91, 5]);
    let offloaded = event("BlockStored", &[hashes.clone(), ("medium", text("CPU"))]);
    let elsewhere = event(
        "BlockRemoved",
        &[hashes.clone(), ("locality", text("REMOTE"))],
    );
    let later = event("BlockPolished", &[hashes]);
    assert_eq!(
        decode(&batch(&[&offloaded, &elsewhere, &later])),
        Ok(vec![])
    );
}

#[test]
fn a_hash_of_two_groups_is_two_blocks_and_a_strange_session_is_nobody() {
    let of_group = |group| {
        let hashes = ("block_hashes", vec![0x91, 5]);
        let members = [
            hashes,
            ("group_idx", vec![group]),
            ("session_id", text("mine")),
        ];
        let decoded = decode(&batch(&[&event("BlockStored", &members)]));
        decoded.expect("well formed").remove(0)
    };
    let (first, second) = (of_group(0), of_group(1));
    assert_ne!(first, second);
    assert_eq!(
        first,
        KvEvent::Stored {
            blocks: vec![5],
            session: None
        }
    );
}

#[test]
fn what_is_cut_off_is_malformed() {
    let whole = batch(&[&event("AllBlocksCleared", &[])]);
    for length in 0..whole.len() {
        let cut = decode(&whole[..length]);
        assert!(
            cut.is_err_and(|malformed| malformed.at <= length),
            "{length} of {} bytes",
            whole.len()
        );
    }
    assert!(
        decode(b"\xdd\xff\xff\xff\xff").is_err(),
        "four billion members announced"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut with_head = batch(&[]);
        with_head.truncate(10);
        with_head.extend(&bytes);
        let _ = decode(&bytes);
        if let Err(malformed) = decode(&with_head) {
            prop_assert!(malformed.at <= with_head.len());
        }
    }

    #[test]
    fn a_spoiled_batch_names_no_more_blocks_than_it_has_bytes(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let hashes = [vec![0x92, 1], vec![0xcf, 0, 0, 0, 0, 0, 0, 1, 0]].concat();
        let stored = [("block_hashes", hashes.clone()), ("medium", text("GPU")), ("session_id", text(KEY))];
        let mut bytes = batch(&[
            &event("BlockStored", &stored),
            &event("BlockRemoved", &[("block_hashes", hashes)]),
            &event("AllBlocksCleared", &[]),
        ]);
        for (place, byte) in edits {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(length.index(bytes.len()));
        }
        let named: usize = match decode(&bytes) {
            Ok(events) => events.iter().map(|event| match event {
                KvEvent::Stored { blocks, .. } | KvEvent::Removed { blocks } => blocks.len(),
                KvEvent::Cleared => 1,
            }).sum(),
            Err(malformed) => malformed.at,
        };
        prop_assert!(named <= bytes.len());
    }
}
