"""What can be seen of a stream while it is read and afterwards; the same in both clients."""

from headrace_client.frames import Cache, End, Usage
from headrace_client.session import StreamSession


class StreamView:
    """The state of one stream."""

    def __init__(self, session: StreamSession) -> None:
        self._session = session

    @property
    def stream_id(self) -> str | None:
        """Its id; None until the server has admitted it."""
        return self._session.stream_id

    @property
    def seq(self) -> int:
        """Position of the last token that came: what `follow(stream_id, after=)` goes on from."""
        return self._session.content.seq

    @property
    def text(self) -> str:
        """The text that has come so far, put together over all connections."""
        return self._session.content.text

    @property
    def end(self) -> End | None:
        """How it ended; None while it runs and when it failed."""
        return self._session.end

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: stop, length, content_filter or abort; None while it runs."""
        return self.end.finish_reason if self.end is not None else None

    @property
    def cache(self) -> Cache | None:
        """Whether it was in the response cache: hit, miss or bypass, or `semantic` where another question was.

        None while it runs, and of a resumed stream.
        """
        return self.end.cache if self.end is not None else None

    @property
    def cache_similarity(self) -> float | None:
        """How alike the question is whose answer this is, 0 to 1; None where it is no other one's."""
        return self.end.cache_similarity if self.end is not None else None

    @property
    def usage(self) -> Usage | None:
        """The engine's count of tokens; None while it runs."""
        return self.end.usage if self.end is not None else None
