"""The shapes of the API that OpenAI's clients speak: items, responses, errors, streams."""
