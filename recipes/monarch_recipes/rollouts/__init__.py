"""The parts of `rl`: what makes, judges, keeps and learns from samples.

problems            the task: problems, prompt, demonstrations, reward
policy, sampling    the model; completions with a KV cache
generator, judging  the actors that make and judge samples
vllm_engine         a generator's engine on vLLM
crew                actors that are replaced one by one
groups              samples, from a prompt to the tensors of a step
replay              the bounded buffer
pipeline            the way of a batch through all of these, in the client
imitation           demonstrations of the supervised phase
grpo, learner       advantages and loss; a rank that learns
recorder            samples as rows of a file
"""
