"""Integer noise of an exactly known law: public tables, plans that use them, and the sampler in the clear.

`tables` and `plans` are arithmetic on public numbers and identical at every party. `clear` draws from them without MPC;
`services.mpc_server.engine.sampling` draws from them on shares, and both turn the same random bits into the same noise.
"""
