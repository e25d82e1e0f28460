"""An agent that asks before it acts: with a deadline by a tool call, or with time by a question.

Needs BLINDPIPE_URL, BLINDPIPE_AGENT_ID, BLINDPIPE_TOKEN and BLINDPIPE_KEY. The person grants
`notification:send`, which the agent's manifest declares.
"""

from blindpipe import Agent, Context

agent = Agent.from_env()


@agent.on("message")
async def act(ctx: Context) -> None:
    if ctx.text == "deploy":
        # May wait for days: no process waits, and the state travels with the question.
        choices, state = ["Deploy", "Not now"], {"version": "1.4.2"}
        await ctx.ask("Deploy 1.4.2?", tag="deploy", choices=choices, state=state)
        return
    # The person's device executes and signs, or nobody does.
    sent = await ctx.call(
        "send_email",
        "notification:send",
        {"to": "team@example.com", "text": ctx.text},
        prompt="Send this to the team?",
    )
    await ctx.reply("Sent." if sent.status == "executed" else f"Not sent: {sent.reason}.")


@agent.on_answer("deploy")
async def deploy(ctx: Context) -> None:
    version = ctx.answer.state["version"]
    chosen = ctx.answer.choice == "Deploy"
    await ctx.reply(f"Deploying {version}." if chosen else "Another time.")


agent.run()
