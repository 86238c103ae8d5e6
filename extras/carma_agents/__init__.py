"""The tools that an agent gets (`carma mcp`): the daemon's answers, as the user who runs this may
have them, and what of a user's jobs it may change.

`reading` and `changing` are the tools; `limits` says how much they may change, `asking` asks a
person first; `shapes` and `short` are the form of the answers; `server` offers all of it.
"""
