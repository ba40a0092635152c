// Hooks with which tests observe an event and act between its steps. Without HBMPROF_TRACE_LEDGER they do nothing.
#ifndef HBMPROF_SRC_CORE_LEDGER_TRACE_H_
#define HBMPROF_SRC_CORE_LEDGER_TRACE_H_

#include <cstdint>

namespace hbmprof::internal {

// Points between the steps of an event. At these points a test can make another thread act.
enum class EventStep : uint8_t {
  kSiteFound,  // the site of an allocation is known, and nothing is recorded
  kTotals,     // the ledger is about to lock all shards in order to read totals
};
#ifdef HBMPROF_TRACE_LEDGER
// Defined by the tests. TraceLedger is called once per event that the ledger enters, with the id of its record and with
// its shard locked, and once per Snapshot and once per ResetPeak, with 0 and with all shards locked. So the order of
// its calls is the order of the events of an account. TraceStep is called with no lock held.
void TraceLedger(uint64_t id);
void TraceStep(EventStep step);
#else
inline void TraceLedger(uint64_t) {}
inline void TraceStep(EventStep) {}
#endif

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_TRACE_H_
