// An NVRTC of another major version, whose functions only fail.

#define CONVTIME_FAKE(name) \
  int name() { return 1; }

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 11;
  *minor = 8;
  return 0;
}
CONVTIME_FAKE(nvrtcGetErrorString)
CONVTIME_FAKE(nvrtcGetNumSupportedArchs)
CONVTIME_FAKE(nvrtcGetSupportedArchs)
CONVTIME_FAKE(nvrtcCreateProgram)
CONVTIME_FAKE(nvrtcDestroyProgram)
CONVTIME_FAKE(nvrtcAddNameExpression)
CONVTIME_FAKE(nvrtcCompileProgram)
CONVTIME_FAKE(nvrtcGetLoweredName)
CONVTIME_FAKE(nvrtcGetProgramLogSize)
CONVTIME_FAKE(nvrtcGetProgramLog)
CONVTIME_FAKE(nvrtcGetCUBINSize)
CONVTIME_FAKE(nvrtcGetCUBIN)
CONVTIME_FAKE(nvrtcGetPTXSize)
CONVTIME_FAKE(nvrtcGetPTX)
}
