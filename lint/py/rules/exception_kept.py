"""Exception kept with its frames.

severity: warning

An exception refers to its traceback, the traceback to every frame of the failed call, and the
frames to their tensors.

Instead: Keep the text: `errors.append(str(e))`. Or call
`traceback.clear_frames(e.__traceback__)` first.
"""
