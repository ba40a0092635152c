// In a program with this file, sysconf returns HBMPROF_PROCESSORS processors on every machine. The ledger makes two
// shards for each.
#include <unistd.h>

extern "C" long __sysconf(int name) noexcept;  // the C library's own

extern "C" long sysconf(int name) noexcept {
  return name == _SC_NPROCESSORS_CONF ? HBMPROF_PROCESSORS : __sysconf(name);
}
