"""States as an agent has them: messages with words and numbers, of a wanted size as JSON.

No imports but the standard library: the peer makes the same states in an environment of its own.
"""

from __future__ import annotations

import json
import random
from typing import Any

State = dict[str, Any]


def state(size_bytes: int, seed: int = 1) -> State:
    """A state whose JSON has about so many bytes; the same for the same arguments."""
    drawn = random.Random(seed)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(3, 9))) for _ in range(2000)]
    made: State = {"task": "review the contracts", "turn": 0, "messages": []}
    left = size_bytes - len(json.dumps(made))
    while left > 0:
        message = {
            "role": drawn.choice(("user", "assistant", "tool")),
            "content": " ".join(drawn.choices(words, k=min(40, max(1, left // 8)))),
            "score": round(drawn.random(), 6),
        }
        made["messages"].append(message)
        left -= len(json.dumps(message)) + 2
    return made
