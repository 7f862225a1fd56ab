"""What can be wrong with a request of the chat page, besides what streams can refuse."""

from headrace_wire.errors import ClientError, InvalidApiKeyError, InvalidRequestError, PermissionDeniedError


class SignedOutError(InvalidApiKeyError):
    """The session has ended."""

    code = "signed_out"


class NoTenantError(PermissionDeniedError):
    """The user belongs to no active tenant."""

    code = "no_tenant"


class ConversationNotFoundError(ClientError):
    """There is no such conversation or message, or it is somebody else's; the two read the same."""

    code = "conversation_not_found"
    http_status = 404
    ws_close_code = 4404


class AnswerInProgressError(InvalidRequestError):
    """The conversation's last answer is still being written."""

    code = "answer_in_progress"


class ConversationFullError(InvalidRequestError):
    """The conversation holds as many messages as one may."""

    code = "conversation_full"
