"""Sign-in and sign-out."""

from django.contrib.auth.views import LoginView, LogoutView

from apps.accounts.forms import SignInForm


class SignInView(LoginView):
    """The one page for signing in, to the chat and to the admin."""

    template_name = "accounts/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True


class SignOutView(LogoutView):
    """Ends the session; POST only."""
