// The PJRT device of this example: a plugin loaded by its path, one client, its first device. Every function
// ends the program with the plugin's own message when a call fails.
#ifndef HBMPROF_EXAMPLES_PJRT_INFERENCE_DEVICE_H_
#define HBMPROF_EXAMPLES_PJRT_INFERENCE_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pjrt_c_api.h"

namespace inference {

[[noreturn]] void Fail(const std::string& message);

class Device {
 public:
  // Loads the plugin and creates a client. `tracked`: with its table wrapped by hbmprof.
  Device(const std::string& plugin_path, bool tracked);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Compiles and loads a program from StableHLO text.
  PJRT_LoadedExecutable* Compile(const std::string& stablehlo);
  // Copies `values` to the device.
  PJRT_Buffer* Upload(const std::vector<float>& values, const std::vector<int64_t>& dims);
  // Runs a program with one output and waits until it is complete.
  PJRT_Buffer* Execute(PJRT_LoadedExecutable* executable, const std::vector<PJRT_Buffer*>& arguments);
  std::vector<float> Download(PJRT_Buffer* buffer);
  void Destroy(PJRT_Buffer* buffer);
  void Destroy(PJRT_LoadedExecutable* executable);

  std::string description() const;

 private:
  void Check(PJRT_Error* error, const char* what) const;
  void Await(PJRT_Event* event, const char* what) const;

  const PJRT_Api* api_;
  PJRT_Client* client_;
  PJRT_Device* device_;
};

}  // namespace inference

#endif  // HBMPROF_EXAMPLES_PJRT_INFERENCE_DEVICE_H_
