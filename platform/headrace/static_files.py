"""Static files from the gateway itself, in whole responses."""

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # ships no types
    """WhiteNoise, except that a file is read at once.

    WhiteNoise answers with an open file, which Django under ASGI must consume in a thread, chunk by chunk, with a
    warning for each request. Our files are small.
    """

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponseBase:
        """Returns the file, a part of it, or "not modified"."""
        found = static_file.get_response(request.method or "GET", request.META)
        body = b""
        if found.file is not None:
            with found.file as opened:
                body = opened.read()
        response = HttpResponse(body, status=int(found.status))
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        if found.file is not None:
            response["Content-Length"] = str(len(body))  # the file may have changed since the start
        return response
