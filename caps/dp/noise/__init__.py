"""Integer noise with an exactly known distribution: public tables, plans that use them, and the samplers in the clear.

`tables` and `plans` compute on public numbers and give the same result at every party. `clear` draws from them without
MPC, `services.mpc_server.engine.sampling` on shares. Both turn the same random bits into the same noise.
"""
