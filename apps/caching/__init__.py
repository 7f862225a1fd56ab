"""What is not computed twice: prompts' beginnings in the engines, and static answers."""
