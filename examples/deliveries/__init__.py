"""Messages of Slack, Telegram and Discord: deliveries that are checked, and replies."""
