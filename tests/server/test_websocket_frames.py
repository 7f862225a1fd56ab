from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from headrace.server.websocket_frames import BINARY, TEXT, close_reason, frame


@given(st.sampled_from([TEXT, BINARY]), st.binary(max_size=300) | st.integers(65530, 65540).map(bytes))
def test_frames_are_those_of_the_websockets_library(opcode: int, payload: bytes) -> None:
    assert frame(opcode, payload) == Frame(Opcode(opcode), payload).serialize(mask=False)


@given(st.text(max_size=200))
def test_a_close_reason_fits_a_control_frame_and_stays_text(text: str) -> None:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    cut = close_reason(text)
    assert len(cut) <= 123
    assert encoded.startswith(cut)
    assert len(cut) == len(encoded) or len(encoded) > 123
    assert text.startswith(cut.decode())
