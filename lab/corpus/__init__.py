"""Scripts of public repositories, at pinned commits and with made data: does `carma estimate` answer?"""
