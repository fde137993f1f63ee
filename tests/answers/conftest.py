collect_ignore_glob = ["lab*"]  # answers to grade, not tests
