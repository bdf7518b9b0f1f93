"""x"""


class ReloadAgent:
    def __init__(self, agent, roots):
        pass
