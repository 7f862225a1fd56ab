"""The built-in web chat: conversations, their messages, and how an answer gets from its stream into them."""
