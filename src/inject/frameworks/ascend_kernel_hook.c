// Empty: see mstx_blocks.cc.
typedef int hbmprof_nothing;
