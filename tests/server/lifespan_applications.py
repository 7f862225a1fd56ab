"""ASGI applications that begin and end with their server, or cannot begin."""

from tests.server.applications import Call, Receive, Scope, Send


async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """An application with a lifespan, whose requests see what its startup left."""
    if scope["type"] != "lifespan":
        await Call(scope, receive, send).answer({"started": scope["state"]["started"]})
        return
    await receive()
    scope["state"]["started"] = True
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("The application shuts down.")
    await send({"type": "lifespan.shutdown.complete"})


async def with_failing_startup(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that cannot start."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": f"no {scope['type']} today"})
