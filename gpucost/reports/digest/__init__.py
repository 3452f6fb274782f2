"""The week as it is sent to chat: cost, waste, the three actions that save most, waits against predictions.

What must not live here: messages and their layout (notify.compose has them). Weeks are those of ISO 8601, in
UTC. The model is apart from its builder, so that modules that compose messages import only the model. Begin
at week_model.WeekDigest.
"""
