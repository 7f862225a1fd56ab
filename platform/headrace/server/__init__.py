"""The gateway's server: Daphne, with a `send()` that waits for the client, limits on every input, and a drain.

`python -m headrace.server --host H --port P` serves `headrace.asgi:application`. What the application can rely on
beyond ASGI 3.0 (`asgi["spec_version"]` 2.4; lifespan is spoken too):

- `await send(...)` returns only when the connection can take more: at most `write_mark_bytes` (16 KiB) wait in user
  space, and the kernel's share is small on streams. After the client left it raises an `OSError`.
- `scope["state"]["headrace.server"]` is the `state.ServerState` of the process: `draining`, `closing`, counts.
- `scope["extensions"]["headrace.transport"]` is the `flow_control.TransportControl` of the connection: what the
  client's side took and what still waits, `wait_accepted`, `abort`, `hold`, the stall timeout.
"""
