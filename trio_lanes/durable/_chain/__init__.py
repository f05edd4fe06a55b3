"""A store over a `Storage`, for engines that know nothing of the rules."""
