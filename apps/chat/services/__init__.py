"""Writes of the chat: conversations, turns (what the user sends), answers (what streams bring)."""
