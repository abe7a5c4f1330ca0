"""The fields of a stream's events that say how it fares. Pure."""

import msgspec


class Event(msgspec.Struct):
    """What of an event's JSON matters here, undecoded: engines differ in types."""

    type: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Event).decode
_NOTHING = Event()


def read_event(data: bytes) -> Event:
    """What matters of one event's JSON; nothing when it cannot be read."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _NOTHING
