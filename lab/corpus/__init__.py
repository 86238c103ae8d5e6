"""Scripts of public repositories, at pinned commits, with made data: are they estimated?"""
