"""What an OpenAI-compatible (or Anthropic) request says, read without rebuilding it: endpoints, views, prompts, errors."""
