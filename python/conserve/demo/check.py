"""What `--check` asks for: the promises of the router, and the same texts from one engine without router and handoff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .mishaps import mishaps
from .report import ConversationReport, FleetReport

_SHOWN_CHARS = 24


def broken_promises(conversations: Sequence[ConversationReport], fleet: FleetReport) -> Iterator[str]:
    """One sentence for each promise that a conversation or the fleet did not keep."""
    for conversation in conversations:
        label = conversation.agent.label
        if conversation.handoffs != 1:
            yield f"conversation {label} was handed over {conversation.handoffs} times, not once"
        if len(conversation.decoders) != 1:
            yield f"conversation {label} ran on {len(conversation.decoders)} decoders: {', '.join(conversation.decoders)}"
        if conversation.recomputed_tokens:
            yield f"conversation {label}: {conversation.recomputed_tokens} tokens in whole blocks were computed again"
    yield from mishaps(conversations, fleet)
    yield from miscounted(conversations, fleet)
    yield from misbooked(conversations, fleet)


def miscounted(conversations: Sequence[ConversationReport], fleet: FleetReport) -> Iterator[str]:
    """Where the answers' usage and the engines' own metrics tell different stories."""
    computed = sum(
        turn.answer.prompt_tokens - turn.answer.cached_tokens
        for conversation in conversations
        for turn in conversation.turns
    )
    counted = sum(worker.computed_tokens for worker in fleet.workers if worker.role == "decoder")
    if computed != counted:
        yield f"the answers say that the decoders computed {computed} prompt tokens, their metrics say {counted}"


def misbooked(conversations: Sequence[ConversationReport], fleet: FleetReport) -> Iterator[str]:
    """Where the router's books do not balance: booked on the workers = held by the conversations, none in flight."""
    if fleet.router.get("check") != "ok":
        yield f"the router's check of its own books says: {fleet.router.get('check')}"
    booked = sum(fleet.booked_blocks.values())
    held = sum(conversation.booked_blocks for conversation in conversations)
    if booked != held:
        yield f"the router has booked {booked} blocks on its workers, its conversations hold {held}"


def different_texts(
    conversations: Sequence[ConversationReport], single: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """One sentence for each conversation whose texts differ from those of the single engine, by its label."""
    for conversation in conversations:
        label = conversation.agent.label
        for number, (routed, alone) in enumerate(zip(conversation.texts, single[label], strict=True), 1):
            if routed != alone:
                at = first_difference(routed, alone)
                yield (
                    f"conversation {label}, turn {number}: character {at + 1} differs: "
                    f"routed {_shown(routed, at)}, single engine {_shown(alone, at)}"
                )
                break


def first_difference(left: str, right: str) -> int:
    """The index of the first character that differs; the shorter length when one begins the other."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _shown(text: str, at: int) -> str:
    if at >= len(text):
        return "has ended"
    return repr(text[at : at + _SHOWN_CHARS])
