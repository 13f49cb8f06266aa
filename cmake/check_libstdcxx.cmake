# Fails the build if LIBRARY has a libstdc++ of its own. Two of them in one process crash at the first
# stream that crosses the border, deep inside the cuDNN frontend.
execute_process(COMMAND ${READELF} --dynamic ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "NEEDED[^\n]*libstdc\\+\\+\\.so\\.6")
  message(FATAL_ERROR
    "${LIBRARY} does not need libstdc++.so.6, the C++ library that torch uses: this compiler links its own "
    "statically, so build with one that does not (CC=/usr/bin/gcc CXX=/usr/bin/g++).")
endif()
